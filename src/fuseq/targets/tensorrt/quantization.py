"""Reads QuantizeLinear and DequantizeLinear: what they store, and whether two have one scale."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

WORDS = {
    ir.DataType.INT8: "int8",
    ir.DataType.FLOAT8E4M3FN: "fp8",
    ir.DataType.INT4: "int4",
    ir.DataType.FLOAT4E2M1: "fp4",
    ir.DataType.UINT8: "uint8",
}
"""Our word for a stored type."""

DTYPE_WORDS = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "fp64",
    ir.DataType.INT32: "int32",
    ir.DataType.INT64: "int64",
    ir.DataType.BOOL: "bool",
    **WORDS,
}

FLOATS = frozenset({"fp32", "fp16", "bf16", "fp64"})


@dataclasses.dataclass(frozen=True)
class Scaling:
    """How one Q or DQ maps values.

    Attributes:
        format: Word of the stored type.
        axis: Channel axis, None for one scale.
        scale: Bytes of the scale in float32, or the name of a computed one.
    """

    format: str
    axis: int | None
    scale: bytes | str


def is_quantize(node: ir.Node | None) -> bool:
    """QuantizeLinear."""
    return node is not None and node.op_type == "QuantizeLinear"


def is_dequantize(node: ir.Node | None) -> bool:
    """DequantizeLinear."""
    return node is not None and node.op_type == "DequantizeLinear"


def scaling_of(node: ir.Node) -> Scaling:
    """What a QuantizeLinear or DequantizeLinear does; equal objects mean equal values."""
    scale = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = scale.const_value if scale is not None else None
    per_channel = tensor is None or tensor.size > 1
    axis = node.attributes.get_int("axis", 1) if per_channel else None
    key: bytes | str = scale.name or "" if scale is not None else ""
    if tensor is not None:
        key = np.ascontiguousarray(tensor.numpy().astype(np.float32)).tobytes()
    return Scaling(stored_format(node), axis, key)


def stored_format(node: ir.Node) -> str:
    """Word of the quantized side's type.

    A quantizer's comes from its zero point, else ``output_dtype``, else uint8 (ONNX operator
    QuantizeLinear); a dequantizer's from its input.
    """
    if is_dequantize(node):
        source = node.inputs[0]
        return DTYPE_WORDS.get(source.dtype, "") if source is not None and source.dtype else ""
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is not None and zero.dtype is not None:
        return DTYPE_WORDS.get(zero.dtype, "")
    wanted = node.attributes.get_int("output_dtype", 0)
    return DTYPE_WORDS.get(ir.DataType(wanted), "uint8") if wanted else "uint8"


def dequantizer(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear that makes ``value``, if one does."""
    producer = value.producer() if value is not None else None
    return producer if is_dequantize(producer) else None


def only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads ``value``, once; None when others or the model's output do."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None
