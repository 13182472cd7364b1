"""Scales stay within the bounds of an absorbed activation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.calibration.formulas import activation_scale
from fuseq.calibration.limits import clip_range, scale_within
from fuseq.calibration.ranges import EMPTY, Range
from fuseq.formats import UINT8
from fuseq.placement.plan import Limits

LOW = st.none() | st.floats(-1e3, 0, width=32)
HIGH = st.none() | st.floats(0, 1e3, width=32)


def test_ranges_are_cut() -> None:
    assert clip_range(Range(-3.0, 9.0), (0.0, 6.0)) == Range(0.0, 6.0)
    assert clip_range(Range(-3.0, 9.0), (0.0, None)) == Range(0.0, 9.0)
    assert clip_range(Range(1.0, 2.0), (None, 6.0)) == Range(1.0, 2.0)
    assert clip_range(EMPTY, (None, None)) == EMPTY


def test_relu6_keeps_its_whole_range() -> None:
    scale, zero_point = activation_scale(0.0, 6.0, UINT8)
    fitted = scale_within(scale, zero_point, UINT8, (0.0, 6.0))
    assert fitted == scale == np.float32(6 / 255)
    assert np.float32(fitted * np.float32(255)) == 6


def test_a_scale_that_rounds_beyond_the_bound_goes_down_one_step() -> None:
    scale = np.nextafter(np.float32(6 / 255), np.float32(1))
    assert np.float32(scale * np.float32(255)) > 6
    fitted = scale_within(np.asarray(scale), np.asarray(0, np.int32), UINT8, (0.0, 6.0))
    assert np.float32(fitted * np.float32(255)) <= 6
    assert fitted == np.nextafter(scale, np.float32(0))


def test_a_rounded_zero_point_shrinks_the_scale() -> None:
    """Clip to [-1, 1]: zero point 127 of 255 steps, so that 1 is 128 steps away."""
    scale, zero_point = activation_scale(-1.0, 1.0, UINT8)
    assert int(zero_point) == 127
    assert scale_within(scale, zero_point, UINT8, (-1.0, 1.0)) == np.float32(1 / 128)


@given(LOW, HIGH, st.floats(-50, 0, width=32), st.floats(0, 50, width=32))
@settings(max_examples=200, deadline=None)
def test_every_stored_value_is_within_and_little_is_lost(
    low: float | None, high: float | None, minimum: float, maximum: float
) -> None:
    limits: Limits = (low, high)
    span = clip_range(Range(minimum, maximum), limits)
    scale, zero_point = activation_scale(span.minimum, span.maximum, UINT8)
    fitted = scale_within(scale, zero_point, UINT8, limits)
    ends = fitted * (np.array([0, 255], np.float32) - np.float32(zero_point))
    smallest = float(np.finfo(np.float32).tiny)
    if fitted > smallest:
        assert low is None or ends[0] >= np.float32(low)
        assert high is None or ends[1] <= np.float32(high)
    assert 0 < fitted <= scale
    if scale > 1e-30:
        assert math.isclose(fitted, scale, rel_tol=0.01) or low or high


@pytest.mark.parametrize("limits", [(0.0, 0.0), (None, None)])
def test_degenerate_limits_give_a_positive_scale(limits: Limits) -> None:
    scale, zero_point = activation_scale(0.0, 0.0, UINT8)
    assert scale_within(scale, zero_point, UINT8, limits) > 0
