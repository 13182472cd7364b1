"""Fit a scale into the bounds of an activation, so that the integer kernel before it absorbs it."""

from __future__ import annotations

import numpy as np

from fuseq.calibration.ranges import Range
from fuseq.formats import Format
from fuseq.placement.plan import Limits


def clip_range(span: Range, limits: Limits) -> Range:
    """The part of ``span`` that lies within ``limits``; an empty range stays empty."""
    low, high = limits
    return Range(
        span.minimum if low is None else max(span.minimum, low),
        span.maximum if high is None else min(span.maximum, high),
    )


def scale_within(
    scale: np.ndarray, zero_point: np.ndarray, fmt: Format, limits: Limits
) -> np.ndarray:
    """Round ``scale`` down until every stored value lies within ``limits``.

    An optimizer drops a Clip before QuantizeLinear when ``scale * (qmin - zero_point) >= low`` and
    ``scale * (qmax - zero_point) <= high`` in float32 (ONNX Runtime, ClipQuantFusion). Rounding the
    zero point moves both ends by up to half a step: a Clip to [-1, 1] with zero point 127 would store
    up to 128 / 127.5.

    Args:
        scale: float32, shape ``()``.
        zero_point: int32, shape ``()``.
        fmt: An asymmetric format.
        limits: The bounds.

    Returns:
        float32, shape ``()``, above 0.
    """
    low, high = limits
    down = np.float32(fmt.qmin) - np.float32(zero_point)
    up = np.float32(fmt.qmax) - np.float32(zero_point)
    bounds = [float(scale)]
    if low is not None and down < 0:
        bounds.append(low / float(down))
    if high is not None and up > 0:
        bounds.append(high / float(up))
    fitted = np.float32(max(min(bounds), float(np.finfo(np.float32).tiny)))
    while fitted > np.finfo(np.float32).tiny and (
        (low is not None and fitted * down < np.float32(low))
        or (high is not None and fitted * up > np.float32(high))
    ):
        fitted = np.nextafter(fitted, np.float32(0))
    return np.asarray(fitted, dtype=np.float32)
