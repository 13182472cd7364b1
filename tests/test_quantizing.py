"""The whole job on small nets: closeness to float, formats, methods, dynamic batch, determinism."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import fuseq
from fuseq.placement.plan import Plan
from tests.graphs import attention_net, conv_net, from_text, named, normal


def _run(model: ir.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0], dtype=np.float64)


def _sqnr_db(exact: np.ndarray, close: np.ndarray) -> float:
    return float(10 * np.log10(np.square(exact).sum() / np.square(exact - close).sum()))


def _options(**more: object) -> fuseq.QuantizeOptions:
    return fuseq.QuantizeOptions(**{"policy": "full", "batch": 1, **more})  # type: ignore[arg-type]


CASES = [
    ("int8", "tensorrt-rtx:sm89", 30.0),
    ("fp8", "tensorrt-rtx:sm89", 25.0),
    ("int8", "tensorrt-rtx:sm80", 30.0),
    ("int8", "onnxruntime:cpu", 25.0),
]


@pytest.mark.parametrize(("fmt", "target", "least_db"), CASES)
def test_a_conv_net_stays_close_to_float(fmt: str, target: str, least_db: float) -> None:
    model = conv_net(channels=32)
    feeds = {"x": normal(1, 32, 8, 8, seed=7, scale=1.0)}
    result = fuseq.quantize(model, calib=[feeds], options=_options(format=fmt, target=target))
    exact, close = _run(model, feeds), _run(result.model, feeds)
    assert exact.shape == close.shape
    assert least_db < _sqnr_db(exact, close) < 70  # exactly equal would mean nothing was rounded


def test_attention_in_fp8_stays_close_to_float() -> None:
    model = attention_net(length=32)
    feeds = {"x": normal(1, 32, 64, seed=7, scale=1.0)}
    result = fuseq.quantize(model, calib=[feeds], options=_options(format="fp8"))
    assert 20 < _sqnr_db(_run(model, feeds), _run(result.model, feeds)) < 70


@pytest.mark.parametrize("method", ["max", "percentile", "percentile:99.5", "entropy", "mse"])
def test_every_method_gives_a_model_near_float(method: str) -> None:
    model = conv_net(channels=32)
    data = [{"x": normal(1, 32, 8, 8, seed=seed, scale=1.0)} for seed in range(4)]
    result = fuseq.quantize(model, calib=data, options=_options(method=method))
    assert _sqnr_db(_run(model, data[0]), _run(result.model, data[0])) > 15


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("a.onnx", "b.onnx"):
        fuseq.quantize(conv_net(), tmp_path / name, calib="random", options=_options(seed=3))
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_random_data_is_said_loudly() -> None:
    result = fuseq.quantize(conv_net(), calib="random", options=_options())
    assert any("random" in note.lower() for note in result.notes)


def test_a_plan_and_its_scales_applied_again_give_the_same_file(tmp_path: Path) -> None:
    data = [{"x": normal(1, 16, 8, 8, seed=7, scale=1.0)}]
    first = fuseq.quantize(conv_net(), tmp_path / "a.onnx", calib=data, options=_options())
    first.plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    fuseq.quantize(conv_net(), tmp_path / "b.onnx", calib=data, options=_options(), plan=again)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_dynamic_batch_stays_dynamic(tmp_path: Path) -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[N, 8] x) => (float[N, 16] y) { m = MatMul(x, w)  y = Relu(m) }""",
            w=normal(8, 16),
        )
    )
    data = [{"x": normal(3, 8, scale=1.0)}]
    fuseq.quantize(model, tmp_path / "q.onnx", calib=data, options=_options(batch=4))
    (dim, _) = onnx.load(tmp_path / "q.onnx").graph.input[0].type.tensor_type.shape.dim
    assert dim.dim_param == "N"
    session = ort.InferenceSession(str(tmp_path / "q.onnx"))
    assert session.run(None, {"x": normal(5, 8)})[0].shape == (5, 16)


@pytest.mark.parametrize(
    ("io_types", "expected"), [("keep", ir.DataType.FLOAT), ("convert", ir.DataType.FLOAT16)]
)
def test_input_and_output_types_are_kept_or_converted(io_types: str, expected: ir.DataType) -> None:
    data = [{"x": normal(1, 16, 8, 8, scale=1.0)}]
    result = fuseq.quantize(conv_net(), calib=data, options=_options(io_types=io_types))
    graph = result.model.graph
    assert {value.dtype for value in (*graph.inputs, *graph.outputs)} == {expected}


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_the_precision_is_that_of_every_float_tensor_inside(precision: str) -> None:
    data = [{"x": normal(1, 16, 8, 8, scale=1.0)}]
    result = fuseq.quantize(conv_net(), calib=data, options=_options(precision=precision))
    dtype = {"fp16": ir.DataType.FLOAT16, "fp32": ir.DataType.FLOAT}[precision]
    for node in result.model.graph:
        if node.op_type in ("Conv", "Relu", "Add", "MaxPool"):
            assert node.outputs[0].dtype == dtype


def test_values_that_overflow_fp16_keep_their_ops_in_fp32_with_a_note() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 8] x) => (float[1, 8] y) <float big = {100000.0}, float one = {1.0}>
            {
              b = Mul(x, big)
              a = Abs(b)
              p = Add(a, one)
              l = Log(p)
              y = MatMul(l, w)
            }""",
            w=normal(8, 8),
        )
    )
    data = [{"x": normal(1, 8, scale=5.0)}]
    result = fuseq.quantize(model, calib=data, options=_options())
    dtypes = {node.name: node.outputs[0].dtype for node in result.model.graph}
    assert dtypes["n_b"] == dtypes["n_a"] == dtypes["n_p"] == ir.DataType.FLOAT
    assert any("n_b" in note and "FP32" in note for note in result.notes)
    exact, close = _run(model, data[0]), _run(result.model, data[0])
    assert np.isfinite(close).all() and _sqnr_db(exact, close) > 25


def test_a_subgraph_stays_float_with_a_note() -> None:
    body = """
        g (float[1, 8] x, bool c) => (float[1, 8] y) {
          h = MatMul(x, w)
          y = If (c) <
            then_branch = t () => (float[1, 8] a) { a = Relu(h) },
            else_branch = e () => (float[1, 8] b) { b = Neg(h) }
          >
        }"""
    model = named(from_text('<ir_version: 10, opset_import: ["" : 21]>' + body, w=normal(8, 8)))
    data = [{"x": normal(1, 8, scale=1.0), "c": np.array(True)}]
    result = fuseq.quantize(
        model, calib=data, options=_options(target="tensorrt:sm80", precision="fp16")
    )
    assert any("float" in note for note in result.notes)
    assert any(node.op_type == "If" for node in result.model.graph)
