"""Fake quantization of tensors: the values that QuantizeLinear and DequantizeLinear give, with gradients.

Sources: ONNX QuantizeLinear-21 and DequantizeLinear-21 (division, halves to even, saturation), OCP
8-bit Floating Point Specification 1.0 (E4M3), Bengio et al. 2013 (straight-through estimator:
https://arxiv.org/abs/1308.3432), Esser et al. 2020 (learned step size: https://arxiv.org/abs/1902.08153).
"""

from __future__ import annotations

from typing import Any

import torch

from fuseq.formats import Format


def fake_quantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    fmt: Format,
    axis: int | None = None,
    zero_point: torch.Tensor | None = None,
) -> torch.Tensor:
    """Round ``x`` to the format and back, bit for bit as ONNX does in float32.

    Args:
        x: Any float tensor; computed in float32, returned in its own dtype.
        scale: float32, shape ``()`` with axis None, else ``(x.shape[axis],)``.
        fmt: The format to round to.
        axis: Channel axis of the scale.
        zero_point: Same shape as ``scale``, of asymmetric integer formats; None is 0.

    Returns:
        Shape and dtype of ``x``. The gradient passes where ``x`` lies within the format's range;
        a scale that requires a gradient gets the one of LSQ, divided by ``sqrt(elements * qmax)``.
    """
    shape = [1] * x.ndim
    if axis is not None:
        shape[axis] = -1
    wide = scale.reshape(shape) if x.ndim else scale
    zero = None if zero_point is None else zero_point.reshape(shape).to(torch.float32)
    if torch.is_grad_enabled() and (x.requires_grad or scale.requires_grad):
        result: torch.Tensor = _FakeQuantize.apply(x, wide, zero, fmt)  # type: ignore[no-untyped-call]
        return result
    return (_rounded(_ratio(x, wide), zero, fmt) * wide).to(x.dtype)


def _ratio(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32) / scale


def _saturated(ratio: torch.Tensor, zero: torch.Tensor | None, fmt: Format) -> torch.Tensor:
    if zero is None:
        return ratio.clamp(fmt.qmin, fmt.qmax)
    return ratio.clamp(fmt.qmin - zero, fmt.qmax - zero)


def _rounded(ratio: torch.Tensor, zero: torch.Tensor | None, fmt: Format) -> torch.Tensor:
    """The quantized value less the zero point, as float32."""
    if fmt.is_float:
        # float8 has no infinity: the cast gives NaN beyond 448, so saturation comes first.
        return _saturated(ratio, None, fmt).to(torch.float8_e4m3fn).to(torch.float32)
    return _saturated(ratio.round(), zero, fmt)


class _FakeQuantize(torch.autograd.Function):
    """Straight through to ``x`` inside the range, LSQ to the scale."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, fmt: Format
    ) -> torch.Tensor:
        ratio = _ratio(x, scale)
        quantized = _rounded(ratio, zero, fmt)
        inside = _saturated(ratio, zero, fmt) == ratio
        ctx.learns = scale.requires_grad
        if ctx.learns:
            # d/ds of s * round(x / s): round(v) - v inside, the bound outside.
            ctx.save_for_backward(inside, quantized - torch.where(inside, ratio, 0.0))
        else:
            ctx.save_for_backward(inside)
        ctx.divisor = (x.numel() / scale.numel() * fmt.qmax) ** 0.5
        ctx.scale_shape = scale.shape
        return (quantized * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inside, *slope = ctx.saved_tensors
        to_scale = None
        if ctx.learns:
            whole = gradient.to(torch.float32) * slope[0]
            to_scale = whole.sum_to_size(ctx.scale_shape) / ctx.divisor
        return gradient * inside, to_scale, None, None


def weight_scale(
    amax: torch.Tensor, fmt: Format, smallest: float, stored_as: torch.dtype
) -> torch.Tensor:
    """``amax / qmax`` within the storing type's normal values and rounded to it, as float32.

    Equal to :func:`fuseq.calibration.formulas.weight_scales` bit for bit.
    """
    wide = amax.to(torch.float64) / fmt.qmax
    bounded = wide.clamp(smallest, torch.finfo(stored_as).max)
    return bounded.to(torch.float32).to(stored_as).to(torch.float32)


def stored(scale: torch.Tensor, smallest: float, stored_as: torch.dtype) -> torch.Tensor:
    """A learned scale as it will be stored; the gradient passes straight through."""
    with torch.no_grad():
        bounded = scale.clamp(smallest, torch.finfo(stored_as).max)
        rounded = bounded.to(stored_as).to(torch.float32)
    return scale + (rounded - scale).detach() if scale.requires_grad else rounded
