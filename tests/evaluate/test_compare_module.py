"""A torch module beside the file that was exported from it, submodule by submodule; engines need a GPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from fuseq.errors import ModelError, TargetError
from fuseq.evaluate.compare import compare
from fuseq.passes.typing import set_precision
from tests.graphs import from_text, normal


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.fc2(torch.relu(self.fc1(x)))
        return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.head = nn.Linear(8, 6)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.blocks(pixels))
        return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    module = Net().eval()
    path = tmp_path_factory.mktemp("module") / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.zeros(2, 8),), path, dynamo=True, verbose=False, external_data=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    return module, path


DATA = [{"pixels": normal(2, 8, seed=seed, scale=1.0)} for seed in range(3)]


def outputs_of(module: nn.Module, name: str) -> np.ndarray:
    seen: list[Any] = []
    handle = module.get_submodule(name).register_forward_hook(
        lambda m, i, o: seen.append(o.numpy())
    )
    with torch.inference_mode():
        for batch in DATA:
            module(torch.from_numpy(batch["pixels"]))
    handle.remove()
    return np.concatenate(seen)


def test_an_export_is_what_the_module_computes(exported: tuple[nn.Module, Path]) -> None:
    module, path = exported
    row = compare(module, path, data=DATA)
    assert row.reference == "Net"
    assert row.runner == "torch; onnxruntime:cpu, as written"
    names = [tensor.name for tensor in row.tensors]
    assert names == ["blocks.0.fc1", "blocks.0.fc2", "blocks.0", "blocks.1.fc1", "blocks.1.fc2", "blocks", "head"]  # fmt: skip
    assert all(tensor.relative is not None and tensor.relative < 1e-6 for tensor in row.tensors)
    assert row.outputs[0].top1 == 1.0


def test_the_module_where_the_file_differs_is_named(exported: tuple[nn.Module, Path]) -> None:
    module, path = exported
    model = ir.load(path)
    weight = model.graph.initializers["blocks.1.fc1.weight"]
    assert weight.const_value is not None
    array = weight.const_value.numpy().copy()
    array[:] = 0
    weight.const_value = ir.tensor(array, name=weight.name)
    row = compare(module, model, data=DATA)
    assert row.first_jump == "blocks.1.fc1"
    (tensor,) = [tensor for tensor in row.tensors if tensor.name == "blocks.1.fc1"]
    exact = outputs_of(module, "blocks.1.fc1").astype(np.float64)
    bias = module.state_dict()["blocks.1.fc1.bias"].numpy()
    expected = np.linalg.norm(exact - bias) / np.linalg.norm(exact)
    assert tensor.relative == pytest.approx(expected, rel=1e-5)


def test_a_half_precision_file_of_the_module(exported: tuple[nn.Module, Path]) -> None:
    module, path = exported
    model = ir.load(path)
    set_precision(model, "fp16")
    row = compare(module, model, data=DATA)
    relative = row.outputs[0].relative
    assert relative is not None
    assert 1e-5 < relative < 2e-3


def test_a_file_of_another_module_is_refused(exported: tuple[nn.Module, Path]) -> None:
    model = ir.load(exported[1])
    model.graph.outputs.append(
        next(v for n in model.graph for v in n.outputs if not v.is_graph_output())
    )
    with pytest.raises(ModelError, match="returns 1 tensors, the file has 2"):
        compare(exported[0], model, data=DATA)


@pytest.mark.skipif(torch.cuda.is_available(), reason="an engine would run")
def test_an_engine_without_its_gpu_says_what_to_do(
    exported: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    (tmp_path / "net.engine").write_bytes(b"vtrt" + bytes(60))
    with pytest.raises(TargetError, match=r"tensorrt_rtx --loadEngine=.*net.engine --loadInputs"):
        compare(exported[1], tmp_path / "net.engine", data=DATA)


def test_files_of_two_exporters_are_compared_by_module(exported: tuple[nn.Module, Path]) -> None:
    """Other names for values and nodes, another operator for a Linear; the paths are in the names."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 8] pixels) => (float[N, 6] out) {
      m0 = MatMul(pixels, w0)  a0 = Add(b0, m0)  r0 = Relu(a0)
      m1 = MatMul(r0, w1)      a1 = Add(b1, m1)  s0 = Add(pixels, a1)
      m2 = MatMul(s0, w2)      a2 = Add(b2, m2)  r1 = Relu(a2)
      m3 = MatMul(r1, w3)      a3 = Add(b3, m3)  s1 = Add(s0, a3)
      m4 = MatMul(s1, w4)      out = Add(b4, m4) }"""
    module, path = exported
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    layers = ["blocks.0.fc1", "blocks.0.fc2", "blocks.1.fc1", "blocks.1.fc2", "head"]
    weights = {f"w{i}": np.ascontiguousarray(state[f"{n}.weight"].T) for i, n in enumerate(layers)}
    weights |= {f"b{i}": state[f"{name}.bias"] for i, name in enumerate(layers)}
    weights["b2"] = weights["b2"] + 5  # what the other exporter got wrong
    other = from_text(text, **weights)
    places = {"0": "0/fc1", "1": "0/fc2", "2": "1/fc1", "3": "1/fc2"}
    for node in other.graph:
        made = node.outputs[0].name or ""
        if made[0] in "ma" and made[1] in places:
            block, layer = places[made[1]].split("/")
            node.name = f"/blocks/blocks.{block}/{layer}/{made}"
        elif made[0] in "sr":
            node.name = f"/blocks/blocks.{made[1]}/{made}"
        else:
            node.name = f"/head/{made}"
    row = compare(path, other, data=DATA)
    found = {tensor.other: tensor for tensor in row.tensors}
    assert {"a0", "a1", "s0", "a2", "a3", "s1"} <= set(found)
    assert all(found[name].matched == "provenance" for name in ("a0", "a2", "s1"))
    assert (found["s0"].relative or 0) < 1e-6
    assert row.first_jump == found["a2"].name
