"""The formulas that make scales from ranges of activations and from weights."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir

from fuseq.calibration.rounding import dequantize_array, quantize_array
from fuseq.errors import CalibrationError, OptionError
from fuseq.formats import Format

SMALLEST_SCALE: Mapping[ir.DataType, float] = {
    ir.DataType.FLOAT: 2.0**-126,
    ir.DataType.BFLOAT16: 2.0**-126,
    ir.DataType.FLOAT16: 2.0**-14,
}
"""Floor of a scale by the type that stores it: its smallest normal value. A scale must be positive
(TensorRT refuses 0), and subnormal scales are flushed to 0 on some hardware. For FP16 the floor is
6.1e-5: an INT8 tensor whose largest magnitude is under 127 x 6.1e-5 = 0.0078 loses levels there."""

_MSE_FACTORS = 1.0 - 0.02 * np.arange(26)
"""Weight search: 1.00, 0.98 ... 0.50 of the largest magnitude. Weights are near normal, for which
the best INT8 factor lies above 0.8."""


def activation_scale(
    minimum: np.ndarray | float,
    maximum: np.ndarray | float,
    fmt: Format,
    stored_as: ir.DataType = ir.DataType.FLOAT,
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point of a range, element by element.

    1. Symmetric: ``scale = amax / qmax``, zero point 0.
    2. Asymmetric: the range is widened to hold 0, ``scale = (maximum - minimum) / (qmax - qmin)``,
       ``zero_point = qmin + round(-minimum / scale)``, so that 0 is exact (ONNX operator
       DynamicQuantizeLinear).

    Args:
        minimum: Lower end, any shape, and ``maximum`` the upper end of the same shape.
        maximum: See ``minimum``.
        fmt: The number format.
        stored_as: Type that will store the scale; it is rounded to that type here, so that
            whoever quantizes uses the number that the engine reads, and floored to
            :data:`SMALLEST_SCALE`.

    Returns:
        float32 scale and int32 zero point, both of the shape of ``minimum``.
    """
    low = np.minimum(np.asarray(minimum, dtype=np.float64), 0.0)
    high = np.maximum(np.asarray(maximum, dtype=np.float64), 0.0)
    if fmt.symmetric:
        scale = _storable(np.maximum(-low, high) / fmt.qmax, stored_as)
        return scale, np.zeros(scale.shape, dtype=np.int32)
    scale = _storable((high - low) / (fmt.qmax - fmt.qmin), stored_as)
    zero_point = np.clip(fmt.qmin + np.rint(-low / scale), fmt.qmin, fmt.qmax)
    return scale, np.asarray(zero_point, dtype=np.int32)


def weight_scales(
    weight: np.ndarray,
    fmt: Format,
    axis: int | None = None,
    method: str = "max",
    stored_as: ir.DataType = ir.DataType.FLOAT,
) -> np.ndarray:
    """Scale of a weight, symmetric: ``amax / qmax``.

    Shapes: weight ``(d0, ..., dn)``, axis None -> ``()``; axis a -> ``(da,)``. Conv weights
    ``(M, C/g, kh, kw)`` have their output channels on axis 0, MatMul weights ``(K, N)`` on axis 1.
    A channel of zeros gets the floor as its scale and stays exactly 0.

    Args:
        weight: Float weights.
        fmt: The number format; its zero point is taken as 0.
        axis: Channel axis, None for one scale.
        method: ``max``, or ``mse``: of 26 factors from 1.00 to 0.50 the one of least squared error.
        stored_as: See :func:`activation_scale`.

    Raises:
        OptionError: ``method`` is neither ``max`` nor ``mse``.
        CalibrationError: A weight is NaN or infinite.
    """
    if method not in ("max", "mse"):
        raise OptionError(f"weight method {method!r} is not known; choose max or mse.")
    amax = _amax(weight, axis)
    if not np.isfinite(amax).all():
        raise CalibrationError("a weight is NaN or infinite; repair the model before quantizing.")
    full = _storable(amax / fmt.qmax, stored_as)
    if method == "max":
        return full
    best = full
    least = np.full(full.shape, np.inf)
    for factor in _MSE_FACTORS:
        scale = _storable(full.astype(np.float64) * factor, stored_as)
        error = _squared_error(weight, scale, fmt, axis)
        best = np.where(error < least, scale, best)
        least = np.minimum(error, least)
    return np.asarray(best, dtype=np.float32)


def _amax(weight: np.ndarray, axis: int | None) -> np.ndarray:
    """Largest magnitude, float64, shape ``()`` or ``(channels,)``; 0 for an empty weight."""
    if weight.size == 0:
        return np.zeros(() if axis is None else (weight.shape[axis],))
    others = _other_axes(weight, axis)
    low = weight.min(axis=others).astype(np.float64)
    high = weight.max(axis=others).astype(np.float64)
    return np.asarray(np.maximum(-low, high))


def _other_axes(weight: np.ndarray, axis: int | None) -> tuple[int, ...]:
    every = range(weight.ndim)
    return tuple(every) if axis is None else tuple(a for a in every if a != axis % weight.ndim)


def _squared_error(
    weight: np.ndarray, scale: np.ndarray, fmt: Format, axis: int | None
) -> np.ndarray:
    rounded = dequantize_array(quantize_array(weight, scale, None, fmt, axis), scale, None, axis)
    rounded -= weight
    np.square(rounded, out=rounded)
    return np.asarray(rounded.sum(axis=_other_axes(weight, axis), dtype=np.float64))


def _storable(scale: np.ndarray, stored_as: ir.DataType) -> np.ndarray:
    """Round to the storing type within its normal values, give back as float32."""
    largest = float(ml_dtypes.finfo(stored_as.numpy()).max)
    bounded = np.clip(scale, SMALLEST_SCALE[stored_as], largest)
    narrow = bounded.astype(np.float32).astype(stored_as.numpy())
    return np.asarray(narrow, dtype=np.float32)
