"""K23 and K99: in any tool's file, layer by layer, what is quantized and what the engine runs it in."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.report.engine_rows import EngineText, engine_row
from fuseq.report.file_layer_rows import file_layer_rows
from fuseq.report.module_rows import module_rows
from fuseq.targets import parse_target
from fuseq.targets.base import ShapeProfile
from tests.graphs import from_text, named, normal

SIZE = 32


def pairs(text: str) -> str:
    """``q(a -> b)`` written out: a pair from a to b."""
    lines = []
    for line in text.strip().splitlines():
        word = line.strip()
        if word.startswith("q("):
            source, target = word[2:-1].split(" -> ")
            lines += [
                f"{target}_q = QuantizeLinear({source}, s, z)",
                f"{target} = DequantizeLinear({target}_q, s, z)",
            ]
        elif word.startswith("w("):
            name = word[2:-1]
            lines.append(f"{name} = DequantizeLinear({name}_q, s, z)")
        else:
            lines.append(word)
    return "\n".join(lines)


def net(body: str, inputs: str, **weights: np.ndarray) -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g ({inputs}) => (float16[1, 64, {SIZE}] y) {{ {pairs(body)} }}"""
    pair = {"s": np.float16(0.05), "z": np.int8(0)}
    return named(from_text(text, **{k: np.asarray(v) for k, v in pair.items()}, **weights))


def stored(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-100, 100, (SIZE, SIZE)).astype(np.int8)


def half(seed: int) -> np.ndarray:
    return normal(SIZE, SIZE, seed=seed).astype(np.float16)


def rows_of(
    model: ir.Model, shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[bool, str, str, str]]:
    engine = parse_target("tensorrt:sm80").compile(model, ShapeProfile(shapes))
    row = engine_row(engine, EngineText("quantized", "INT8"), {})
    found = file_layer_rows(model, row, {})
    assert module_rows(None, row, found)[0].layers == len(found)
    return {
        entry.name: (entry.quantized, entry.planned_precision, entry.engine_precision, entry.reason)
        for entry in found
    }


def test_k99_a_swin_block_after_ptq() -> None:
    """Window attention with a position bias: projections in INT8, the two products of attention not."""
    model = net(
        """
        q(x -> xq)
        w(wq)
        w(wv)
        a = MatMul(xq, wq)
        k = MatMul(x, wk)
        v = MatMul(xq, wv)
        kt = Transpose <perm = [0, 2, 1]> (k)
        scores = MatMul(a, kt)
        biased = Add(scores, bias)
        p = Softmax <axis = -1> (biased)
        h = MatMul(p, v)
        q(h -> hq)
        y = MatMul(hq, wo)
        """,
        f"float16[1, 64, {SIZE}] x",
        wq_q=stored(1), wk=half(2), wv_q=stored(3), wo=half(4),
        bias=normal(1, 64, 64, seed=5).astype(np.float16),
    )  # fmt: skip
    assert rows_of(model, {"x": (1, 64, SIZE)}) == {
        "n_a": (True, "int8", "int8", "quantized: a pair on its input, a scale on its weight"),
        "n_k": (False, "fp16", "fp16", "float: no pair, no scale"),
        "n_v": (True, "int8", "int8", "quantized: a pair on its input, a scale on its weight"),
        "n_scores": (False, "fp16", "fp16", "float: its inputs have no pair"),
        "n_h": (False, "fp16", "fp16", "float: its inputs have no pair"),
        "n_y": (False, "fp16", "fp16", "float: its weight has no scale"),
    }


def test_k23_deformable_attention_after_qat() -> None:
    """Pairs on the Linear layers; sampling and what it reads stay float, and the account says so."""
    model = net(
        """
        q(x -> xq)
        w(wv)
        v = MatMul(xq, wv)
        grid_in = MatMul(x, wg)
        image = Reshape(v, plane)
        points = Reshape(grid_in, pairs_of)
        grid = Tanh(points)
        sampled = GridSample(image, grid)
        back = Reshape(sampled, tokens)
        w(wo)
        y = MatMul(back, wo)
        """,
        f"float16[1, 64, {SIZE}] x",
        wv_q=stored(1), wg=half(2), wo_q=stored(3),
        plane=np.array([1, SIZE, 8, 8]), pairs_of=np.array([1, 32, 32, 2]),
        tokens=np.array([1, -1, SIZE]),
    )  # fmt: skip
    for value in model.graph.outputs:
        value.shape = ir.Shape([1, 1024, SIZE])
    found = rows_of(model, {"x": (1, 64, SIZE)})
    assert {name: (row[0], row[2], row[3]) for name, row in found.items()} == {
        "n_v": (True, "int8", "quantized: a pair on its input, a scale on its weight"),
        "n_grid_in": (False, "fp16", "float: no pair, no scale"),
        "n_y": (False, "fp16", "float: its input has no pair"),
    }


def test_what_the_engine_does_not_follow_is_said() -> None:
    """A pair that the engine cannot use: the kernel's own precision stands beside the file's."""
    model = net(
        """
        q(x -> xq)
        w(wv)
        y = MatMul(xq, wv)
        """,
        f"float16[1, 64, {SIZE}] x",
        wv_q=stored(1),
    )
    engine = parse_target("tensorrt:sm80").compile(model, ShapeProfile({"x": (1, 64, SIZE)}))
    row = engine_row(engine, EngineText("quantized", "INT8"), {})
    halves = tuple(dataclasses.replace(kernel, precision="fp16") for kernel in row.kernels)
    (found,) = file_layer_rows(model, dataclasses.replace(row, kernels=halves), {})
    assert found.quantized
    assert (found.planned_precision, found.engine_precision) == ("int8", "fp16")
    assert found.reason == "the file quantizes it, the engine runs it in fp16"
