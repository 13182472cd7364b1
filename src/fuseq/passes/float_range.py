"""What survives in a float type: constants and calibrated magnitudes against the limits of FP16 and BF16."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

OVERFLOW_MARGIN = 2.0
"""Calibration sees a sample: a value may be this many times larger later."""

SMALL_CONSTANT = 16
"""Constants up to this many elements are parameters of the formula (epsilon, scale, bounds), where
every element counts; above it they are weights, where tiny elements may round to zero."""

_SHIFT_TOLERANCE = 0.25
"""A parameter may change by this ratio. FP16 subnormals keep 1e-6 within 2% and lose 1e-8."""

_SCALE_TOLERANCE = 2.0**-8
"""Half a step of INT8 at full range, and the rounding of BF16. FP16 passes it below 7.6e-6."""

NUMPY_TYPES: Mapping[ir.DataType, np.dtype[Any]] = {
    ir.DataType.FLOAT: np.dtype(np.float32),
    ir.DataType.DOUBLE: np.dtype(np.float64),
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


class Fault(enum.Enum):
    """Why numbers cannot be held in a type."""

    OVERFLOWS = "overflows"
    VANISHES = "vanishes"


def largest(dtype: ir.DataType) -> float:
    """Largest finite value: 65504 for FP16 (IEEE 754 binary16), 3.39e38 for BF16."""
    return float(ml_dtypes.finfo(NUMPY_TYPES[dtype]).max)


def smallest_normal(dtype: ir.DataType) -> float:
    """Smallest normal value: 2**-14 for FP16, 2**-126 for BF16; below it bits are lost."""
    return float(ml_dtypes.finfo(NUMPY_TYPES[dtype]).smallest_normal)


def constant_fault(array: np.ndarray, dtype: ir.DataType) -> Fault | None:
    """Say how ``array`` (any float type, any shape) fails in ``dtype``; infinities are allowed.

    1. Overflow: a finite element rounds to infinity.
    2. Vanish: in a small constant, a non-zero element changes by more than _SHIFT_TOLERANCE;
       in weights, all non-zero elements round to zero.
    """
    if array.size == 0:
        return None
    wide = array.astype(np.float64) if array.size <= SMALL_CONSTANT else array
    low, high = float(np.min(wide)), float(np.max(wide))
    if not np.isfinite(low) or not np.isfinite(high):
        finite = wide[np.isfinite(wide)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    amax = max(abs(low), abs(high))
    with np.errstate(over="ignore", under="ignore"):
        if not np.isfinite(np.asarray(amax).astype(NUMPY_TYPES[dtype])):
            return Fault.OVERFLOWS
        if array.size > SMALL_CONSTANT:
            gone = amax > 0 and float(np.asarray(amax).astype(NUMPY_TYPES[dtype])) == 0
            return Fault.VANISHES if gone else None
        narrow = wide.astype(NUMPY_TYPES[dtype]).astype(np.float64)
    finite_mask = np.isfinite(wide) & (wide != 0)
    shift = np.abs(narrow[finite_mask] / wide[finite_mask] - 1)
    return Fault.VANISHES if shift.size and float(shift.max()) > _SHIFT_TOLERANCE else None


def scale_fault(array: np.ndarray, dtype: ir.DataType) -> Fault | None:
    """Say whether a quantization scale changes by more than _SCALE_TOLERANCE in ``dtype``."""
    wide = array.astype(np.float64).reshape(-1)
    wide = wide[wide != 0]
    with np.errstate(over="ignore", under="ignore"):
        narrow = wide.astype(NUMPY_TYPES[dtype]).astype(np.float64)
    shift = np.abs(narrow / wide - 1)
    if not shift.size or float(shift.max()) <= _SCALE_TOLERANCE:
        return None
    return Fault.OVERFLOWS if np.isinf(narrow).any() else Fault.VANISHES


def magnitude_fault(amax: float, dtype: ir.DataType) -> Fault | None:
    """Say how a tensor whose largest calibrated magnitude is ``amax`` fails in ``dtype``.

    Zero tensors fit. NaN and infinity overflow. A tensor wholly below the smallest normal value
    keeps less than the format's precision everywhere and counts as vanishing.
    """
    if not np.isfinite(amax) or amax * OVERFLOW_MARGIN > largest(dtype):
        return Fault.OVERFLOWS
    if 0 < amax < smallest_normal(dtype):
        return Fault.VANISHES
    return None
