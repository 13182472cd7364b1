"""Read QuantizeLinear and DequantizeLinear: scale, zero point, stored type, channel axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, integer_attribute, is_op

STORED_RANGES: Mapping[ir.DataType, tuple[str, float, float]] = {
    ir.DataType.INT4: ("int4", -8, 7),
    ir.DataType.UINT4: ("uint4", 0, 15),
    ir.DataType.INT8: ("int8", -128, 127),
    ir.DataType.UINT8: ("uint8", 0, 255),
    ir.DataType.INT16: ("int16", -32768, 32767),
    ir.DataType.UINT16: ("uint16", 0, 65535),
    ir.DataType.INT32: ("int32", -(2**31), 2**31 - 1),
    ir.DataType.FLOAT8E4M3FN: ("fp8", -448.0, 448.0),
    ir.DataType.FLOAT8E5M2: ("fp8_e5m2", -57344.0, 57344.0),
}
"""Name, smallest and largest value of every type that Q/DQ of a file may store (ONNX
QuantizeLinear-21, table of saturation). E4M3 is cut at 448 by its format."""


@dataclasses.dataclass(frozen=True)
class Quantizer:
    """What one QuantizeLinear or DequantizeLinear does.

    Attributes:
        scale: float32, shape ``()`` per tensor or ``(channels,)``.
        zero_point: int64, shape of ``scale``.
        stored: Type of the stored values.
        axis: Channel axis counted from the front, None per tensor.
    """

    scale: np.ndarray
    zero_point: np.ndarray
    stored: ir.DataType
    axis: int | None

    @property
    def format(self) -> str:
        """Name of the stored type."""
        return STORED_RANGES[self.stored][0]

    @property
    def qmin(self) -> float:
        """Smallest stored value."""
        return STORED_RANGES[self.stored][1]

    @property
    def qmax(self) -> float:
        """Largest stored value."""
        return STORED_RANGES[self.stored][2]

    @property
    def problem(self) -> str:
        """Why no engine can use the scale; "" when it can."""
        if np.isnan(self.scale).any():
            return "its scale is NaN"
        if np.isinf(self.scale).any():
            return "its scale is infinite"
        return "its scale is not above 0" if (self.scale <= 0).any() else ""

    def equals(self, other: Quantizer) -> bool:
        """Whether the two undo each other: same scale bits, zero point, stored type and axis."""
        return (
            self.stored == other.stored
            and self.axis == other.axis
            and np.array_equal(self.scale, other.scale, equal_nan=True)
            and np.array_equal(self.zero_point, other.zero_point)
        )


def is_quantize(node: ir.Node | None) -> bool:
    """Whether ``node`` is ONNX's QuantizeLinear."""
    return node is not None and is_op(node, "QuantizeLinear")


def is_dequantize(node: ir.Node | None) -> bool:
    """Whether ``node`` is ONNX's DequantizeLinear."""
    return node is not None and is_op(node, "DequantizeLinear")


def read_quantizer(node: ir.Node) -> Quantizer | str:
    """Read a Q or DQ node, or say why it cannot be read.

    A scale of one element is per tensor whatever its shape. The stored type is that of the zero
    point; without one, of the attribute ``output_dtype`` or of what DequantizeLinear reads; else
    UINT8, as the operator says.
    """
    if "block_size" in node.attributes and integer_attribute(node, "block_size", 0):
        return "its scales are one a block"
    tensor = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if tensor is None:
        return "its scale is computed at run time"
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    zero_tensor = constant(zero)
    if zero is not None and zero_tensor is None:
        return "its zero point is computed at run time"
    stored = _stored_type(node, zero_tensor)
    if stored not in STORED_RANGES:
        return f"it stores {stored.name}, which is not a quantized type"
    scale = tensor.numpy().astype(np.float32)
    per_tensor = scale.size == 1
    if not per_tensor and scale.ndim != 1:
        return f"its scale has shape {list(scale.shape)}"
    scale = scale.reshape(() if per_tensor else (-1,))
    axis = None if per_tensor else _axis(node, scale.size)
    if isinstance(axis, str):
        return axis
    points = np.zeros(scale.shape, np.int64)
    if zero_tensor is not None and stored not in _FLOATING:
        found = zero_tensor.numpy().astype(np.int64).reshape(-1)
        if found.size not in (1, scale.size):
            return f"its zero point has {found.size} elements and its scale {scale.size}"
        points = np.broadcast_to(found, (scale.size,)).reshape(scale.shape)
    return Quantizer(scale, points, stored, axis)


_FLOATING = (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2)


def quantized_values(array: np.ndarray, by: Quantizer) -> np.ndarray:
    """QuantizeLinear of a constant, float32 arithmetic, halves to even; shape of ``array``."""
    ratio = array.astype(np.float32) / _spread(by.scale, by, array.ndim)
    if by.stored in _FLOATING:
        kind = ml_dtypes.float8_e4m3fn if by.stored == _FLOATING[0] else ml_dtypes.float8_e5m2
        return np.asarray(np.clip(ratio, by.qmin, by.qmax).astype(kind))
    whole = np.rint(ratio.astype(np.float64)) + _spread(by.zero_point, by, array.ndim)
    return np.asarray(np.clip(np.nan_to_num(whole), by.qmin, by.qmax).astype(by.stored.numpy()))


def dequantized_values(stored: np.ndarray, by: Quantizer) -> np.ndarray:
    """DequantizeLinear of a constant: ``(q - zero point) * scale`` in float32, shape kept.

    Quantizing the result again with the same scale gives the same integers: the product is within
    half an ulp of ``q * scale``, so its ratio to the scale is within 2^-22 of a whole number below
    2^16. For INT32 it is exact up to 2^24, which is what float32 holds.
    """
    wide = stored.astype(np.float32)
    if by.zero_point.any():
        wide = (stored.astype(np.int64) - _spread(by.zero_point, by, stored.ndim)).astype(
            np.float32
        )
    return np.asarray(wide * _spread(by.scale, by, stored.ndim), dtype=np.float32)


def _spread(values: np.ndarray, by: Quantizer, rank: int) -> np.ndarray:
    if by.axis is None:
        return values
    return values.reshape([-1 if axis == by.axis else 1 for axis in range(rank)])


def _stored_type(node: ir.Node, zero: ir.TensorProtocol | None) -> ir.DataType:
    if zero is not None:
        return zero.dtype
    data = node.inputs[0]
    if is_dequantize(node):
        return (data.dtype if data is not None else None) or ir.DataType.UNDEFINED
    named = integer_attribute(node, "output_dtype", 0)
    return ir.DataType(named) if named else ir.DataType.UINT8


def _axis(node: ir.Node, channels: int) -> int | str:
    data = node.inputs[0]
    axis = integer_attribute(node, "axis", 1)
    shape = data.shape if data is not None else None
    if shape is None:
        return axis if axis >= 0 else "its axis counts from the end of an unknown rank"
    if not -len(shape) <= axis < len(shape):
        return f"its axis {axis} is outside the tensor's {len(shape)} dimensions"
    size = shape[axis]
    if isinstance(size, int) and size != channels:
        # Files below opset 13 have no attribute "axis"; their tools meant the output channels.
        if "axis" not in node.attributes and shape[0] == channels:
            return 0
        return f"it has {channels} scales, and axis {axis} of the tensor has {size} elements"
    return axis % len(shape)
