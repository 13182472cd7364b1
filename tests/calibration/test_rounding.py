from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto, helper

from fuseq.calibration.rounding import dequantize_array, quantize_array
from fuseq.formats import FP8, INT7, INT8, UINT8, Format

ONNX_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "fp8": TensorProto.FLOAT8E4M3FN,
}


def onnx_quantized(
    x: np.ndarray, scale: np.ndarray, zero: np.ndarray, fmt: Format, axis: int
) -> np.ndarray:
    """QuantizeLinear as ONNX Runtime runs it; the result as raw codes."""
    kind = ONNX_TYPES[fmt.name]
    zeros = helper.make_tensor(
        "z", kind, zero.shape, zero.astype(fmt.dtype.numpy()).tobytes(), raw=True
    )
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis)]
    output, output_type = "q", kind
    if fmt.is_float:  # NumPy gets no float8 from ONNX Runtime: read its value instead
        nodes.append(helper.make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT))
        output, output_type = "f", TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(output, output_type, x.shape)],
        [onnx.numpy_helper.from_array(scale, "s"), zeros],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = onnxruntime.SessionOptions()
    # Constant folding aside, the optimizer may drop a Q followed by a Cast.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {"x": x})[0])


def hard_values(scale: float) -> np.ndarray:
    """Ties, neighbours of ties, bounds, zeros, infinities and noise of all magnitudes."""
    rng = np.random.default_rng(0)
    ties = ((np.arange(-600, 600) + 0.5) * scale).astype(np.float32)
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    grid = np.sort(codes[np.isfinite(codes)])
    middles = ((grid[1:] + grid[:-1]) / 2 * np.float32(scale)).astype(np.float32)
    noise = rng.standard_normal(4000) * 10.0 ** rng.integers(-8, 6, 4000)
    special = [0.0, -0.0, np.inf, -np.inf, 1e38, -1e38, 1e-45]
    near = np.concatenate([ties, middles])
    return np.concatenate(
        [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf)),
         noise, special]
    ).astype(np.float32)  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 0.25, 0.0123, 3.7e-5])
@pytest.mark.parametrize(("fmt", "zero"), [(INT8, 0), (INT8, 5), (UINT8, 0), (UINT8, 131)])
def test_integers_as_onnxruntime(fmt: Format, zero: int, scale: float) -> None:
    x = hard_values(scale)
    x = x[np.abs(x) < 1e9 * scale]  # ONNX Runtime's int32 overflows beyond
    wanted = onnx_quantized(x, np.float32(scale).reshape(()), np.array(zero), fmt, 0)
    np.testing.assert_array_equal(quantize_array(x, scale, zero, fmt), wanted)


@pytest.mark.parametrize("scale", [1.0, 0.25, 0.0123, 3.7e-5])
def test_fp8_as_onnxruntime(scale: float) -> None:
    x = hard_values(scale)
    x = x[np.isfinite(x)]
    wanted = onnx_quantized(x, np.float32(scale).reshape(()), np.array(0), FP8, 0)
    found = quantize_array(x, scale, None, FP8)
    assert found.dtype == ml_dtypes.float8_e4m3fn
    np.testing.assert_array_equal(found.astype(np.float32), wanted)


def test_fp8_is_ml_dtypes_cast_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 300_000, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    wanted = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    found = quantize_array(x, 1.0, None, FP8)
    np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


def test_saturation_nan_and_infinity() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38], dtype=np.float32)
    assert quantize_array(x, 0.5, None, INT8).tolist() == [127, -128, 0, 127, -128]
    assert quantize_array(x, 0.5, 7, UINT8).tolist() == [255, 0, 7, 255, 0]
    assert quantize_array(x, 0.5, None, INT7).tolist() == [63, -64, 0, 63, -64]
    fp8 = quantize_array(x, 0.5, None, FP8).astype(np.float32)
    np.testing.assert_array_equal(fp8, np.array([448, -448, np.nan, 448, -448], np.float32))


@pytest.mark.parametrize("fmt", [INT8, UINT8, FP8])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 3, 3, 2), 0), ((4, 70_000), 0), ((3, 5), 1), ((2, 3, 4), -1), ((2, 30_011, 3), 2)],
)
def test_per_channel_as_onnxruntime(shape: tuple[int, ...], axis: int, fmt: Format) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape).astype(np.float32)
    scale = rng.uniform(0.001, 0.02, shape[axis]).astype(np.float32)
    zero = rng.integers(0, 200, shape[axis]) if fmt is UINT8 else np.zeros(shape[axis], int)
    found = quantize_array(x, scale, None if fmt.symmetric else zero, fmt, axis)
    wanted = onnx_quantized(x, scale, zero, fmt, axis)
    np.testing.assert_array_equal(found.astype(wanted.dtype), wanted)
    assert found.shape == shape


def test_wrong_number_of_scales() -> None:
    with pytest.raises(ValueError, match="scale has 3 elements, axis 1 of .2, 4. needs 4"):
        quantize_array(np.zeros((2, 4)), np.ones(3), None, INT8, 1)
    with pytest.raises(ValueError, match="per-tensor needs 1"):
        quantize_array(np.zeros((2, 4)), np.ones(2), None, INT8)


def test_empty_array() -> None:
    assert quantize_array(np.zeros((0, 3)), 1.0, None, INT8).shape == (0, 3)
    assert quantize_array(np.zeros((0, 3)), np.ones(3), None, FP8, 1).shape == (0, 3)


@given(
    codes=npst.arrays(np.uint8, st.integers(1, 40)),
    scale=st.floats(2.0**-20, 2.0**20, width=32),
    zero=st.integers(0, 255),
)
def test_quantize_undoes_dequantize(codes: np.ndarray, scale: float, zero: int) -> None:
    real = dequantize_array(codes, scale, zero)
    np.testing.assert_array_equal(quantize_array(real, scale, zero, UINT8), codes)
    signed = codes.view(np.int8)
    real = dequantize_array(signed, scale, None)
    np.testing.assert_array_equal(quantize_array(real, scale, None, INT8), signed)
    floats = codes.view(ml_dtypes.float8_e4m3fn)
    real = dequantize_array(floats, scale, None)
    again = quantize_array(real, scale, None, FP8)
    np.testing.assert_array_equal(again.astype(np.float32), floats.astype(np.float32))


@given(
    x=npst.arrays(np.float32, 20, elements=st.floats(-1e4, 1e4, width=32)),
    scale=st.floats(2.0**-10, 2.0**10, width=32),
)
def test_error_is_half_a_step_within_the_range(x: np.ndarray, scale: float) -> None:
    inside = np.clip(x, -127 * np.float32(scale), 127 * np.float32(scale))
    real = dequantize_array(quantize_array(inside, scale, None, INT8), scale, None)
    assert np.abs(real.astype(np.float64) - inside).max() <= scale * (0.5 + 1e-5)
