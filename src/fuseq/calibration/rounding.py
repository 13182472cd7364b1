"""Round arrays to a number format, bit for bit as the ONNX operators do.

Sources: ONNX QuantizeLinear-21 (``saturate(round(x / scale) + zero_point)``, halves to even) and
ONNX Cast-21, table of float 8 conversions with ``saturate=1`` (beyond the largest value, infinity
included, comes the largest value; NaN stays NaN).
"""

from __future__ import annotations

import numpy as np

from fuseq.formats import Format

_CHUNK_ELEMENTS = 1 << 16
"""256 KiB of float32: the intermediate steps stay in a core's own cache."""


def quantize_array(
    array: np.ndarray,
    scale: np.ndarray | float,
    zero_point: np.ndarray | int | None,
    fmt: Format,
    axis: int | None = None,
) -> np.ndarray:
    """Quantize as QuantizeLinear does on float32, within ``[fmt.qmin, fmt.qmax]``.

    Args:
        array: Any float array, computed in float32.
        scale: Per-tensor: one element, shape ``()`` or ``(1,)``. Per-channel: ``(array.shape[axis],)``.
        zero_point: Same shape as ``scale``; None means 0. A floating format has none.
        fmt: The format to round to.
        axis: Channel axis (negative counts from the end), None for per-tensor.

    Returns:
        Shape of ``array``, dtype ``fmt.dtype.numpy()``. NaN becomes NaN in a floating format and
        0 plus the zero point in an integer one (ONNX leaves that case open).

    Raises:
        ValueError: ``scale`` has not one element, or not one a channel.
    """
    x = np.asarray(array, dtype=np.float32)
    scales = _scales_by_channel(x, np.asarray(scale, dtype=np.float32), axis)
    zeros = np.zeros_like(scales) if zero_point is None else _like(zero_point, scales)
    out = np.empty(x.shape, dtype=fmt.dtype.numpy())
    if axis is None:
        _quantize_flat(x.reshape(-1), scales[0], zeros[0], fmt, out.reshape(-1))
        return out
    rows_in, rows_out = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
    if rows_in[:1].size >= _CHUNK_ELEMENTS // 16:
        for channel in range(rows_in.shape[0]):
            row = np.ascontiguousarray(rows_in[channel]).reshape(-1)
            flat = np.empty(row.shape, dtype=out.dtype)
            _quantize_flat(row, scales[channel], zeros[channel], fmt, flat)
            rows_out[channel] = flat.reshape(rows_out[channel].shape)
        return out
    spread = (-1,) + (1,) * (rows_in.ndim - 1)
    rows_out[...] = _rounded(rows_in / scales.reshape(spread), zeros.reshape(spread), fmt)
    return out


def dequantize_array(
    quantized: np.ndarray,
    scale: np.ndarray | float,
    zero_point: np.ndarray | int | None,
    axis: int | None = None,
) -> np.ndarray:
    """``(quantized - zero_point) * scale`` in float32, shapes as in :func:`quantize_array`.

    Source: ONNX DequantizeLinear-21.
    """
    q = np.asarray(quantized).astype(np.float32)
    scales = _scales_by_channel(q, np.asarray(scale, dtype=np.float32), axis)
    zeros = np.zeros_like(scales) if zero_point is None else _like(zero_point, scales)
    if axis is None:
        return np.asarray((q - zeros[0]) * scales[0], dtype=np.float32)
    spread = [1] * q.ndim
    spread[axis] = -1
    return np.asarray((q - zeros.reshape(spread)) * scales.reshape(spread), dtype=np.float32)


def _scales_by_channel(x: np.ndarray, scale: np.ndarray, axis: int | None) -> np.ndarray:
    """``scale`` as a vector with one element, or one a channel."""
    flat = scale.reshape(-1)
    wanted = 1 if axis is None else x.shape[axis]
    if flat.size != wanted:
        what = "per-tensor" if axis is None else f"axis {axis} of {list(x.shape)}"
        raise ValueError(f"scale has {flat.size} elements, {what} needs {wanted}")
    return flat


def _like(zero_point: np.ndarray | int, scales: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.asarray(zero_point, dtype=np.float32).reshape(-1), scales.shape)


def _quantize_flat(
    x: np.ndarray, scale: np.float32, zero: np.float32, fmt: Format, out: np.ndarray
) -> None:
    for start in range(0, x.size, _CHUNK_ELEMENTS):
        part = slice(start, start + _CHUNK_ELEMENTS)
        out[part] = _rounded(x[part] / scale, zero, fmt)


def _rounded(ratio: np.ndarray, zero: np.ndarray | np.float32, fmt: Format) -> np.ndarray:
    """Round ``x / scale``, which it overwrites, and saturate."""
    if fmt.is_float:
        np.clip(ratio, fmt.qmin, fmt.qmax, out=ratio)
        return ratio.astype(fmt.dtype.numpy())
    np.rint(ratio, out=ratio)
    # Bounds move instead of the data: the sum could round in float32 where x / scale is huge.
    np.clip(ratio, fmt.qmin - zero, fmt.qmax - zero, out=ratio)
    ratio += zero
    if np.isnan(ratio).any():
        ratio[...] = np.where(np.isnan(ratio), zero, ratio)
    return ratio.astype(fmt.dtype.numpy())
