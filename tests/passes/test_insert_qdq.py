"""Inserting a plan: exact nodes, exact weights, fresh names, and outputs near the float model's."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from fuseq.calibration.scales import Scale
from fuseq.errors import PlanError
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.placement.plan import Plan, QuantizedTensor, Use
from tests.graphs import conv_net, from_text, named, normal


def _entry(tensor: str, kind: str, *uses: tuple[str, int], axis: int | None = None, **more: str):  # type: ignore[no-untyped-def]
    return QuantizedTensor(
        tensor, kind, more.get("format", "int8"), axis, more.get("group", tensor),  # type: ignore[arg-type]
        tuple(Use(*use) for use in uses), "r", "why",
    )  # fmt: skip


def _plan(*entries: QuantizedTensor) -> Plan:
    return Plan("t:x", "int8", "fp32", "full", "0", entries)


def _scale(*values: float, axis: int | None = None) -> Scale:
    array = np.array(values if axis is not None else values[0], np.float32)
    return Scale(array, None, "int8", axis)


def _listing(model: ir.Model) -> list[str]:
    return [
        f"{node.op_type}({', '.join(v.name or '' for v in node.inputs if v is not None)})"
        f" -> {node.outputs[0].name}"
        for node in model.graph
    ]


def _run(model: ir.Model, **feeds: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0])


def _linear() -> ir.Model:
    return named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[2, 4] x) => (float[2, 3] y, float[2, 4] z) { y = MatMul(x, w)  z = Relu(x) }""",
            w=normal(4, 3, scale=1.0),
        )
    )


def test_one_pair_serves_the_planned_reader_and_the_other_keeps_the_float_tensor() -> None:
    model = _linear()
    served = insert_qdq(model, _plan(_entry("x", "activation", ("n_y", 0))), {"x": _scale(0.5)})
    assert _listing(model) == [
        "QuantizeLinear(x, x_scale, x_zero_point) -> x_quantized",
        "DequantizeLinear(x_quantized, x_scale, x_zero_point) -> x_dequantized",
        "MatMul(x_dequantized, w) -> y",
        "Relu(x) -> z",
    ]
    assert served == {"x_quantize": ("r",), "x_dequantize": ("r",)}


def test_entries_of_one_tensor_and_group_share_one_pair() -> None:
    model = _linear()
    entries = _plan(_entry("x", "activation", ("n_y", 0)), _entry("x", "activation", ("n_z", 0)))
    insert_qdq(model, entries, {"x": _scale(0.5)})
    assert [node.op_type for node in model.graph].count("QuantizeLinear") == 1
    assert all("x" not in [v.name for v in n.inputs if v] for n in model.graph if n.name == "n_z")


def test_weights_are_rounded_half_to_even_and_saturated_a_channel() -> None:
    model = _linear()
    weight = np.array(
        [[0.5, 1.0, 2.0], [1.5, -1.0, -2.0], [2.5, 300.0, 0.0], [-0.5, -300.0, 1.0]], np.float32
    )
    model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    plan = _plan(_entry("w", "weight", ("n_y", 1), axis=1))
    insert_qdq(model, plan, {"w": _scale(1.0, 1.0, 0.5, axis=1)})
    stored = model.graph.initializers["w_quantized"].const_value
    assert stored is not None and stored.dtype == ir.DataType.INT8
    np.testing.assert_array_equal(
        stored.numpy(), [[0, 1, 4], [2, -1, -4], [2, 127, 0], [0, -128, 2]]
    )
    assert "w" not in model.graph.initializers


def test_a_weight_with_a_float_reader_is_kept_for_it() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[2, 4] x, int64[1] i) => (float[2, 4] y, float[1, 4] e) {
              y = MatMul(x, w)
              e = Gather(w, i)
            }""",
            w=normal(4, 4),
        )
    )
    insert_qdq(model, _plan(_entry("w", "weight", ("n_y", 1))), {"w": _scale(0.01)})
    assert "w" in model.graph.initializers
    assert "Gather(w, i) -> e" in _listing(model)


def test_a_bias_is_int32_with_the_given_scale() -> None:
    model = conv_net()
    scale = Scale(np.full(16, 0.001, np.float32), None, "int32", 0)
    insert_qdq(
        model, _plan(_entry("b1", "bias", ("n_c1", 2), axis=0, format="int32")), {"b1": scale}
    )
    stored = model.graph.initializers["b1_quantized"].const_value
    assert stored is not None and stored.dtype == ir.DataType.INT32
    np.testing.assert_array_equal(
        stored.numpy(), np.rint(normal(16, seed=2).astype(np.float64) / np.float32(0.001))
    )


def test_an_output_keeps_its_public_name() -> None:
    model = _linear()
    insert_qdq(model, _plan(_entry("y", "activation", ("", 0))), {"y": _scale(0.5)})
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    feeds = {"x": normal(2, 4, scale=1.0)}
    expected = feeds["x"].astype(np.float64) @ normal(4, 3, scale=1.0).astype(np.float64)
    np.testing.assert_allclose(_run(model, **feeds), np.rint(expected / 0.5) * 0.5, atol=1e-6)


def test_names_that_are_taken_are_never_taken_again() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[2, 4] x) => (float[2, 4] y, float[2, 4] x_quantized) {
              y = Relu(x)
              x_quantized = Neg(x)
            }"""
        )
    )
    insert_qdq(model, _plan(_entry("x", "activation", ("n_y", 0))), {"x": _scale(0.5)})
    names = [value.name for node in model.graph for value in node.outputs]
    assert len(names) == len(set(names))
    assert model.graph.outputs[1].name == "x_quantized"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (_entry("nowhere", "activation", ("n_y", 0)), "'nowhere'"),
        (_entry("x", "activation", ("n_gone", 0)), "'n_gone'"),
        (_entry("x", "activation", ("n_y", 0), group="other"), "'other'"),
        (_entry("x", "weight", ("n_y", 0)), "no constant"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_by_name(entry: QuantizedTensor, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        insert_qdq(_linear(), _plan(entry), {"x": _scale(0.5)})


def test_outputs_follow_the_quantized_arithmetic_done_in_float64() -> None:
    model = _linear()
    plan = _plan(_entry("x", "activation", ("n_y", 0)), _entry("w", "weight", ("n_y", 1), axis=1))
    weight = normal(4, 3, scale=1.0)
    w_scale = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
    insert_qdq(model, plan, {"x": _scale(0.02), "w": Scale(w_scale, None, "int8", 1)})
    x = normal(2, 4, seed=5, scale=1.0)
    x_scale = np.float32(0.02)
    x_hat = np.clip(np.rint(x / x_scale), -128, 127).astype(np.float64) * x_scale
    w_hat = np.clip(np.rint(weight / w_scale), -128, 127).astype(np.float64) * w_scale
    np.testing.assert_allclose(_run(model, x=x), x_hat @ w_hat, rtol=1e-5, atol=1e-5)
