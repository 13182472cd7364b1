"""One call for every target: NumPy and torch, files, models, engines, modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import fuseq
from fuseq.compiling import compile_model
from fuseq.errors import ModelError, OptionError, TargetError
from fuseq.passes.typing import set_precision
from fuseq.serving.session import Session
from fuseq.targets.engine_runtime.cuda import gpu_missing
from tests.graphs import conv_net, from_text, named, normal

W = normal(8, 16)
X = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)
EXPECTED = np.maximum(X.astype(np.float64) @ W.astype(np.float64), 0)


def linear() -> ir.Model:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 8] x) => (float[N, 16] y) { m = MatMul(x, w)  y = Relu(m) }"""
    return named(from_text(text, w=W))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    ir.save(linear(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_it_is_public() -> None:
    assert fuseq.Session is Session


def test_a_file_a_model_and_its_engine_give_the_same(file: Path) -> None:
    engine = compile_model(file, "onnxruntime:cpu", batch=5, keep_plan=True)
    for source in (file, str(file), linear(), engine):
        with Session(source) as session:
            assert (session.target, session.inputs, session.outputs) == (
                "onnxruntime:cpu",
                ("x",),
                ("y",),
            )
            for found in (session(X), session(x=X), session.run({"x": X})):
                np.testing.assert_allclose(found["y"], EXPECTED, rtol=1e-5, atol=1e-6)


def test_torch_tensors_come_out_where_one_went_in(file: Path) -> None:
    torch = pytest.importorskip("torch")
    session = Session(file)
    found = session(torch.from_numpy(X))["y"]
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.numpy(), EXPECTED, rtol=1e-5, atol=1e-6)
    assert isinstance(session(X)["y"], np.ndarray)
    with pytest.raises(OptionError, match="torch.bfloat16, which NumPy does not have"):
        session(torch.from_numpy(X).bfloat16())


def test_a_module_takes_the_same_call() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 16, bias=False)

        def forward(self, x, scale=1.0):  # type: ignore[no-untyped-def]
            return {"y": torch.relu(self.fc(x)) * scale}

    module = Net()
    module.fc.weight.data = torch.from_numpy(W.T.copy())
    session = Session(module)
    assert (session.target, session.inputs) == ("torch", ("x",))
    found = session(x=X)["y"]
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-5, atol=1e-6)
    tensor = session(torch.from_numpy(X))["y"]
    assert isinstance(tensor, torch.Tensor)
    assert not tensor.requires_grad


def test_torch_cuda_takes_the_same_call_and_runs_on_the_cpu_without_a_gpu(file: Path) -> None:
    pytest.importorskip("torch")
    session = Session(file, target="torch:cuda")
    assert (session.target, session.inputs, session.outputs) == ("torch:cuda", ("x",), ("y",))
    np.testing.assert_allclose(session(X.astype(np.float64))["y"], EXPECTED, rtol=1e-5, atol=1e-6)
    with pytest.raises(OptionError, match="target 'tensorrt:sm80' does not run models"):
        Session(file, target="tensorrt:sm80")


def test_the_same_data_serves_a_float_model_and_its_fp16_file(tmp_path: Path) -> None:
    model = linear()
    set_precision(model, "fp16", io_types="convert")
    ir.save(model, tmp_path / "half.onnx")
    session = Session(tmp_path / "half.onnx")
    found = session(x=X)["y"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float64), EXPECTED, atol=2e-3)


def test_inputs_are_checked(file: Path) -> None:
    session = Session(file)
    with pytest.raises(OptionError, match=r"the inputs are \['x'\], \['z'\] were given"):
        session(z=X)
    with pytest.raises(OptionError, match="2 arrays for the inputs"):
        session(X, X)
    with pytest.raises(OptionError, match="given twice"):
        session(X, x=X)
    with pytest.raises(OptionError, match="no array of numbers"):
        session(x=object())
    with pytest.raises(TargetError, match="could not run the model"):
        session(x=X[:, :4])


def test_what_cannot_be_opened_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        Session(tmp_path / "nothing.onnx")
    with pytest.raises(OptionError, match="a dict cannot be run"):
        Session({})
    with pytest.raises(OptionError, match="compile with keep_plan=True"):
        Session(compile_model(file, "tensorrt:sm80"))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ModelError, match="not a readable ONNX file|not an ONNX model"):
        Session(broken)


@pytest.mark.skipif(gpu_missing() is None, reason="there is a GPU")
def test_an_engine_without_a_gpu_says_so(tmp_path: Path) -> None:
    model = conv_net()
    set_precision(model, "fp16")
    engine = compile_model(model, "tensorrt-rtx:sm89", keep_plan=True)
    assert engine.plan_bytes is not None
    (tmp_path / "m.engine").write_bytes(engine.plan_bytes)
    for source in (engine, tmp_path / "m.engine"):
        with pytest.raises(TargetError, match="an engine runs on a GPU, and there is no GPU here"):
            Session(source)
