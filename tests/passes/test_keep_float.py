"""A float convolution between pairs gets its own DequantizeLinear, which ONNX Runtime leaves alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from fuseq.passes.keep_float import keep_planned_floats
from tests.graphs import from_text, named, normal
from tests.islands import optimized, run


def _model(
    tail: str = "r = Relu(c)\nq = QuantizeLinear(r, s, z)", dims: str = "2, 4, 6, 6"
) -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (uint8[{dims}] x) => (uint8[a, b, c, d] q)
    <float s = {{0.05}}, uint8 z = {{3}}>
    {{ d = DequantizeLinear(x, s, z)
       c = Conv(d, w)
       {tail} }}"""
    return named(from_text(text, w=normal(4, 4, 1, 1, seed=1, scale=0.5)))


def _weights_types(model: ir.Model) -> list[int]:
    graph = optimized(model).graph
    types = {i.name: i.data_type for i in graph.initializer}
    return [types.get(n.input[1], 0) for n in graph.node if n.op_type in ("Conv", "FusedConv")]


@pytest.mark.parametrize(
    "tail", ["q = QuantizeLinear(c, s, z)", "r = Relu(c)\nq = QuantizeLinear(r, s, z)"]
)
def test_numbers_stay_and_the_weights_stay_float(tail: str) -> None:
    model = _model(tail)
    assert onnx.TensorProto.FLOAT not in _weights_types(model)  # ONNX Runtime quantizes them
    feeds = {"x": np.arange(2 * 4 * 36, dtype=np.uint8).reshape(2, 4, 6, 6)}
    proto = ir.to_proto(model)
    exact = onnx.reference.ReferenceEvaluator(proto).run(None, feeds)[0]
    keep_planned_floats(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert _weights_types(model) == [onnx.TensorProto.FLOAT]
    assert np.abs(run(model, feeds).astype(int) - exact.astype(int)).max() <= 1
    (dequantize,) = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    scale = dequantize.inputs[1]
    assert scale is not None and scale.const_value is not None
    np.testing.assert_array_equal(scale.const_value.numpy(), np.full(4, 0.05, np.float32))
    assert dequantize.attributes.get_int("axis") == 1


def test_other_readers_keep_the_scalar_pair() -> None:
    model = _model("q = QuantizeLinear(c, s, z)\nt = Neg(d)")
    keep_planned_floats(model)
    sizes = [
        node.inputs[1].const_value.size
        for node in model.graph
        if node.op_type == "DequantizeLinear" and node.inputs[1] and node.inputs[1].const_value
    ]
    assert sorted(sizes) == [1, 4]


@pytest.mark.parametrize(
    ("tail", "dims"),
    [("t = Tanh(c)\nq = QuantizeLinear(t, s, z)", "2, 4, 6, 6"), ("q = QuantizeLinear(c, s, z)", "2, n, 6, 6")],
)  # fmt: skip
def test_where_nothing_threatens_or_channels_are_unknown_all_stays(tail: str, dims: str) -> None:
    model = _model(tail, dims)
    before = [node.op_type for node in model.graph]
    keep_planned_floats(model)
    assert [node.op_type for node in model.graph] == before
    assert all(
        node.inputs[1] is None or node.inputs[1].name == "s"
        for node in model.graph
        if node.op_type == "DequantizeLinear"
    )
