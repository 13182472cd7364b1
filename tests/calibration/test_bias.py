"""Scales of INT32 biases, and the weight scales that are raised for them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.calibration.bias import bias_scales
from fuseq.calibration.scales import Scale
from fuseq.errors import PlanError
from tests.graphs import from_text, named, normal
from tests.islands import case_of, kernels, plan_of, run, sqnr_db


def _model(weight: np.ndarray, bias: np.ndarray) -> ir.Model:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 4, 8, 8] x) => (float[n, 4, 8, 8] y) { y = Conv(x, w, b) }"""
    return named(from_text(text, w=weight, b=bias))


def _scales(of_weight: list[float]) -> dict[str, Scale]:
    return {
        "x": Scale(np.float32(0.1), np.int32(128), "uint8"),
        "w": Scale(np.array(of_weight, np.float32), None, "int7", 0),
    }


def test_bias_scale_is_the_product_in_float32() -> None:
    plan = plan_of(_model(normal(4, 4, 1, 1), normal(4)))
    found = bias_scales(plan, _scales([0.1, 0.3, 0.7, 1.1]))
    assert list(found) == ["bias:n_y"]
    scale = found["bias:n_y"]
    expected = np.float32(0.1) * np.array([0.1, 0.3, 0.7, 1.1], np.float32)
    assert (scale.format, scale.axis, scale.zero_point) == ("int32", 0, None)
    assert scale.scale.dtype == np.float32
    np.testing.assert_array_equal(scale.scale, expected)


def test_a_weight_scale_too_small_for_its_bias_is_raised() -> None:
    model = _model(normal(4, 4, 1, 1), np.array([1.0, 0.0, -2.0, 3.0], np.float32))
    plan = plan_of(model)
    found = bias_scales(plan, _scales([0.01, 1e-30, 1e-30, 0.02]), model)
    least = 2.0 / 2**30 / np.float64(np.float32(0.1))
    np.testing.assert_allclose(found["w"].scale, [0.01, 1e-30, least, 0.02], rtol=1e-6)
    assert (found["w"].format, found["w"].axis) == ("int7", 0)
    assert abs(2.0 / found["bias:n_y"].scale[2]) <= 2**30 * (1 + 1e-6)


def test_nothing_is_raised_where_nothing_overflows() -> None:
    model = _model(normal(4, 4, 1, 1), normal(4))
    assert list(bias_scales(plan_of(model), _scales([0.01] * 4), model)) == ["bias:n_y"]


def test_a_dead_channel_keeps_its_bias() -> None:
    weight = normal(4, 4, 1, 1, scale=0.5)
    weight[1] = 0.0
    weight[2] = 1e-20
    model = _model(weight, np.array([0.5, 2.0, -1.0, 0.1], np.float32))
    feeds = {"x": normal(2, 4, 8, 8, seed=3, scale=1.0)}
    case = case_of(model, feeds)
    assert kernels(case.quantized)["QLinearConv"] == 1
    found = run(case.quantized, feeds)
    step = float(case.scales["y"].scale)
    np.testing.assert_allclose(found[:, 1], 2.0, atol=step / 2)
    np.testing.assert_allclose(found[:, 2], -1.0, atol=step / 2)
    assert sqnr_db(run(model, feeds), found) > 30


def test_a_bias_without_its_weight_or_scale_is_refused() -> None:
    plan = plan_of(_model(normal(4, 4, 1, 1), normal(4)))
    lone = dataclasses.replace(plan, tensors=tuple(t for t in plan.tensors if t.kind == "bias"))
    with pytest.raises(PlanError, match="'n_y' has no quantized input and weight"):
        bias_scales(lone, {})
    with pytest.raises(PlanError, match="no scale for group 'x'"):
        bias_scales(plan, {})
