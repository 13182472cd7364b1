from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from fuseq.calibration.formulas import SMALLEST_SCALE, activation_scale, weight_scales
from fuseq.calibration.rounding import dequantize_array, quantize_array
from fuseq.errors import CalibrationError, OptionError
from fuseq.formats import FP8, INT7, INT8, UINT8, Format


@pytest.mark.parametrize(("fmt", "divisor"), [(INT8, 127), (INT7, 63), (FP8, 448)])
def test_symmetric_scale_is_amax_over_qmax(fmt: Format, divisor: float) -> None:
    scale, zero = activation_scale(-3.0, 2.0, fmt)
    assert scale == np.float32(3.0 / divisor)
    assert zero == 0
    assert scale.dtype == np.float32 and zero.dtype == np.int32 and scale.shape == ()


def test_asymmetric_is_onnx_dynamic_quantize_linear() -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("z", TensorProto.UINT8, []),
        ],
    )
    reference = ReferenceEvaluator(
        helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    )
    for low, high in [(-1.3, 7.7), (0.5, 6.0), (-4.0, -1.0), (-1e-3, 250.0), (-2.0, 2.0)]:
        wanted = reference.run(None, {"x": np.array([low, high], np.float32)})
        scale, zero = activation_scale(np.float32(low), np.float32(high), UINT8)
        np.testing.assert_allclose(scale, wanted[0], rtol=1e-6)
        assert zero == int(wanted[1])


@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_zero_is_exact_in_an_asymmetric_format(one: float, other: float) -> None:
    scale, zero = activation_scale(min(one, other), max(one, other), UINT8)
    assert 0 <= int(zero) <= 255
    codes = quantize_array(np.zeros(1, np.float32), scale, zero, UINT8)
    assert dequantize_array(codes, scale, zero)[0] == 0.0


def test_ranges_of_many_tensors_at_once() -> None:
    low, high = np.array([-1.0, 0.0, -8.0]), np.array([1.0, 5.1, 0.0])
    scale, zero = activation_scale(low, high, UINT8)
    for index in range(3):
        one = activation_scale(low[index], high[index], UINT8)
        assert scale[index] == one[0] and zero[index] == one[1]


@pytest.mark.parametrize(
    ("stored_as", "floor"), [(ir.DataType.FLOAT16, 2.0**-14), (ir.DataType.FLOAT, 2.0**-126)]
)
def test_tiny_scale_is_floored_to_the_smallest_normal(stored_as: ir.DataType, floor: float) -> None:
    assert SMALLEST_SCALE[stored_as] == floor
    assert activation_scale(0.0, 0.0, INT8, stored_as)[0] == np.float32(floor)
    assert activation_scale(-1e-39, 0.0, UINT8, stored_as)[0] == np.float32(floor)


def test_scale_is_rounded_to_what_stores_it() -> None:
    scale, _ = activation_scale(-1.0, 1.0, INT8, ir.DataType.FLOAT16)
    assert scale == np.float32(np.float16(1 / 127)) != np.float32(1 / 127)
    scale, _ = activation_scale(-1.0, 1.0, INT8, ir.DataType.BFLOAT16)
    assert scale == np.float32(0.00787353515625)  # 1/127 to 8 bits
    assert activation_scale(-1e9, 1e9, INT8, ir.DataType.FLOAT16)[0] == 65504.0


@pytest.mark.parametrize(("axis", "shape"), [(None, ()), (0, (2,)), (1, (3,)), (-1, (4,))])
def test_weight_scale_shapes_and_values(axis: int | None, shape: tuple[int, ...]) -> None:
    weight = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    scale = weight_scales(weight, INT8, axis)
    assert scale.shape == shape and scale.dtype == np.float32
    others = None if axis is None else tuple(a for a in range(3) if a != axis % 3)
    wanted = np.abs(weight.astype(np.float64)).max(axis=others) / 127
    np.testing.assert_array_equal(scale, wanted.astype(np.float32))


@pytest.mark.parametrize("method", ["max", "mse"])
@pytest.mark.parametrize("fmt", [INT8, FP8])
def test_zero_channel_stays_exactly_zero(fmt: Format, method: str) -> None:
    weight = np.ones((3, 5), np.float32)
    weight[1] = 0
    scale = weight_scales(weight, fmt, 0, method, ir.DataType.FLOAT16)
    assert scale[1] == np.float32(2.0**-14)
    codes = quantize_array(weight, scale, None, fmt, 0)
    assert (dequantize_array(codes, scale, None, 0)[1] == 0).all()


def test_mse_weight_scale_is_the_best_of_its_factors() -> None:
    weight = np.random.default_rng(3).standard_t(3, (4, 2000)).astype(np.float32)
    found = weight_scales(weight, INT8, 0, "mse")
    full = np.abs(weight).max(axis=1) / 127
    assert (found < 0.99 * full).any()
    for channel in range(4):
        errors = {}
        for percent in range(50, 101, 2):
            scale = np.float32(full[channel] * percent / 100)
            rounded = np.clip(np.round(weight[channel] / scale), -128, 127) * scale
            errors[percent] = float(((rounded.astype(np.float64) - weight[channel]) ** 2).sum())
        best = min(errors, key=lambda percent: errors[percent])
        np.testing.assert_allclose(found[channel], full[channel] * best / 100, rtol=1e-6)


def test_weights_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(CalibrationError, match="NaN or infinite"):
        weight_scales(np.array([1.0, np.nan]), INT8)
    with pytest.raises(CalibrationError, match="NaN or infinite"):
        weight_scales(np.array([1.0, -np.inf]), INT8, 0)
    with pytest.raises(OptionError, match="choose max or mse"):
        weight_scales(np.ones(3), INT8, None, "entropy")


def test_half_precision_weights() -> None:
    weight = np.array([[1.0, -2.0], [0.5, 0.25]], np.float16)
    np.testing.assert_array_equal(
        weight_scales(weight, INT8, 0), np.array([2 / 127, 0.5 / 127], np.float32)
    )
