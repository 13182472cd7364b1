"""Fake quantization against ONNX's rounding, bit for bit, and its gradients against their formulas."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fuseq.calibration.formulas import SMALLEST_SCALE, weight_scales
from fuseq.calibration.rounding import dequantize_array, quantize_array
from fuseq.formats import FP8, INT8, UINT8
from fuseq.torch.rounding import fake_quantize, weight_scale

FLOATS = hnp.arrays(
    np.float32, (3, 5), elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=True)
)
SCALES = st.floats(2.0**-14, 50.0, width=16)


@given(FLOATS, SCALES, st.sampled_from([INT8, FP8]))
@settings(max_examples=300, deadline=None)
def test_equals_onnx_rounding_bit_for_bit(x: np.ndarray, scale: float, fmt: object) -> None:
    wide = np.float32(scale)
    wanted = dequantize_array(quantize_array(x, wide, None, fmt), wide, None)  # type: ignore[arg-type]
    ours = fake_quantize(torch.from_numpy(x), torch.tensor(wide), fmt)  # type: ignore[arg-type]
    assert np.array_equal(ours.numpy(), wanted)  # an integer has no -0, so bytes may differ there
    if fmt is FP8:
        assert ours.numpy().tobytes() == wanted.tobytes()


def test_every_e4m3_value_its_ties_and_what_saturates() -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values = np.unique(codes[np.isfinite(codes)])
    assert values[-1] == 448.0 and np.diff(values).min() == 2.0**-9  # subnormal step
    ties = (values[:-1] + values[1:]) / 2
    x = np.concatenate([values, ties, [460.0, 464.0, 1e30, np.inf, -np.inf]]).astype(np.float32)
    ours = fake_quantize(torch.from_numpy(x), torch.tensor(1.0), FP8).numpy()
    assert np.array_equal(ours[: values.size], values)
    even = itertools.pairwise(values)
    wanted = [
        low if low.astype(ml_dtypes.float8_e4m3fn).view(np.uint8) % 2 == 0 else high
        for low, high in even
    ]
    assert np.array_equal(ours[values.size : values.size + ties.size], np.asarray(wanted))
    assert ours[-5:].tolist() == [448.0, 448.0, 448.0, 448.0, -448.0]


def test_halves_go_to_even() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, -128.5, -129.0])
    ours = fake_quantize(x, torch.tensor(1.0), INT8)
    assert ours.tolist() == [0.0, 2.0, 2.0, 0.0, -2.0, 126.0, 127.0, -128.0, -128.0]


def test_zero_point_moves_the_range() -> None:
    x = torch.tensor([-3.0, -0.26, 0.0, 0.26, 60.0])
    ours = fake_quantize(x, torch.tensor(0.25), UINT8, None, torch.tensor(4))
    assert ours.tolist() == [-1.0, -0.25, 0.0, 0.25, 60.0]


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("fmt", [INT8, FP8])
def test_weight_scales_equal_calibrations(axis: int | None, fmt: object) -> None:
    weight = np.random.default_rng(3).normal(size=(6, 7)).astype(np.float32)
    weight[0] = 0
    wanted = weight_scales(weight, fmt, axis, "max", ir.DataType.FLOAT16)  # type: ignore[arg-type]
    others = None if axis is None else 1 - axis
    amax = torch.from_numpy(np.asarray(np.abs(weight).max(axis=others)))
    smallest = SMALLEST_SCALE[ir.DataType.FLOAT16]
    ours = weight_scale(amax, fmt, smallest, torch.float16)  # type: ignore[arg-type]
    assert ours.numpy().tobytes() == wanted.tobytes()


def test_gradients_are_straight_through_and_lsq() -> None:
    x = torch.tensor([0.3, -0.9, 200.0, -200.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)
    fake_quantize(x, scale, INT8).backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert x.grad is not None and x.grad.tolist() == [1.0, 2.0, 0.0, 0.0]
    # Esser et al. 2020, equation 3: round(v) - v inside, the bound outside; over sqrt(N * qmax).
    slope = 1 * (1 - 0.6) + 2 * (-2 + 1.8) + 3 * 127 + 4 * -128
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx(slope / (4 * 127) ** 0.5, rel=1e-6)


def test_half_precision_keeps_its_dtype() -> None:
    x = torch.tensor([0.1, 3.0], dtype=torch.bfloat16)
    assert fake_quantize(x, torch.tensor(0.25), INT8).dtype == torch.bfloat16
