"""8-bit tensors that travel with their scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fuseq.errors import TargetError
from fuseq.targets.torch_cuda.emitter import Emitter, Operand, shape_of

LIMITS = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""Largest magnitude of the 8-bit types."""


@dataclasses.dataclass(frozen=True)
class Held:
    """``stored * scale * factor``.

    Attributes:
        stored: FP8 or INT8 values.
        scale: float scale: one, or one for each index of ``axis``; its type is the float type that
            the graph continues in.
        axis: Channel axis of a per-channel scale, else None.
        factor: A constant that the graph multiplies by later.
    """

    stored: Operand
    scale: np.ndarray
    axis: int | None = None
    factor: float = 1.0

    @property
    def is_per_channel(self) -> bool:
        """More than one scale."""
        return self.axis is not None and self.scale.size > 1

    @property
    def number(self) -> float:
        """Scale times factor of a tensor that has one scale."""
        return float(self.scale.reshape(-1)[0]) * self.factor

    def times(self, factor: float) -> Held:
        """The same stored values, multiplied."""
        return dataclasses.replace(self, factor=self.factor * factor)


def float_of(emit: Emitter, held: Held) -> torch.fx.Node:
    """The float tensor, in the scale's type."""
    stored = emit.tensor(held.stored)
    dtype = emit.tensor(held.scale).meta["val"].dtype
    values = emit.call(torch.Tensor.to, stored, dtype)
    if not held.is_per_channel:
        return emit.call(torch.mul, values, held.number)
    shape = [1] * len(shape_of(stored))
    shape[held.axis or 0] = -1
    scaled = emit.call(torch.mul, values, emit.tensor(held.scale.reshape(shape)))
    return scaled if held.factor == 1.0 else emit.call(torch.mul, scaled, held.factor)


def quantized(
    emit: Emitter, node: ir.Node, operands: Sequence[Operand | Held | None]
) -> torch.fx.Node:
    """QuantizeLinear: divide, saturate, round to nearest even (ONNX operator specification).

    Raises:
        TargetError: The scale is computed, per channel, or has a zero point.
    """
    data, scale = operands[0], operands[1]
    zero = operands[2] if len(operands) > 2 else None
    if not isinstance(scale, np.ndarray) or scale.size != 1 or isinstance(data, Held):
        raise TargetError(f"torch:cuda: {node.name!r} quantizes with more than one scale.")
    if data is None or (isinstance(zero, np.ndarray) and np.any(zero.astype(np.float32) != 0)):
        raise TargetError(
            f"torch:cuda: {node.name!r} has a zero point that is not 0; run `fuseq fix` first."
        )
    dtype = stored_type(node)
    return emit.call(quantize, emit.tensor(data), float(scale.reshape(-1)[0]), dtype)


def quantize(data: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Round ``data / scale`` to 8 bits, saturating; any shape, same shape back."""
    limit = LIMITS[dtype]
    scaled = data.to(torch.float32) / scale
    if dtype == torch.int8:
        return torch.clamp(torch.round(scaled), -limit - 1, limit).to(dtype)
    return torch.clamp(scaled, -limit, limit).to(dtype)


def stored_type(node: ir.Node) -> torch.dtype:
    """Type that a QuantizeLinear writes.

    Raises:
        TargetError: Neither FP8 nor INT8.
    """
    if node.outputs[0].dtype == ir.DataType.FLOAT8E4M3FN:
        return torch.float8_e4m3fn
    if node.outputs[0].dtype == ir.DataType.INT8:
        return torch.int8
    raise TargetError(f"torch:cuda: {node.name!r} quantizes to {node.outputs[0].dtype}.")
