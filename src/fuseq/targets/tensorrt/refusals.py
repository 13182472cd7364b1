"""What TensorRT refuses before it optimizes anything.

Sources: TensorRT documentation, "Explicit Quantization" ("ONNX Support": symmetric scales alone, no
QLinearConv, QLinearMatMul, ConvInteger, MatMulInteger; FP8 from sm89) and "Strong Typing"; its parser's
answer to a DequantizeLinear of INT32.
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.errors import TargetError
from fuseq.targets.tensorrt.builder import Builder
from fuseq.targets.tensorrt.operators import PRODUCTS
from fuseq.targets.tensorrt.quantization import (
    DTYPE_WORDS,
    FLOATS,
    dequantizer,
    is_dequantize,
    is_quantize,
    stored_format,
)
from fuseq.targets.tensorrt.rules import FP8_CONV_CHANNELS

_INTEGER_OPS = frozenset(
    {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"}
)
_FORMATS = frozenset({"int8", "fp8", "int4", "fp4"})
_FIRST_CAPABILITY = {"int8": 75, "fp8": 89, "int4": 75, "fp4": 100}
_SAME_TYPE = PRODUCTS | {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Concat", "Sum"}


def refuse(graph: ir.Graph, builder: Builder) -> None:
    """Check every node.

    Raises:
        TargetError: The first node that TensorRT refuses, and why.
    """
    for node in graph:
        name = node.name or node.op_type
        if node.op_type in _INTEGER_OPS:
            raise TargetError(
                f"node {name!r}: TensorRT has no {node.op_type}; write it with QuantizeLinear and "
                "DequantizeLinear (`fuseq fix` does)."
            )
        if node.op_type in PRODUCTS and len(node.inputs) < 2:
            raise TargetError(
                f"node {name!r}: a {node.op_type} of one input is no product; rename the plugin's "
                "operator, or export the model again."
            )
        if is_quantize(node) or is_dequantize(node):
            _check_pair(node, name, builder)
        elif node.op_type == "Conv" and not node.domain:
            _check_fp8_convolution(node, name)
        if builder.is_strong and node.op_type in _SAME_TYPE:
            _check_one_type(node, name)


def _check_pair(node: ir.Node, name: str, builder: Builder) -> None:
    stored = stored_format(node)
    if stored not in _FORMATS:
        raise TargetError(
            f"node {name!r} ({node.op_type}): TensorRT quantizes to int8, fp8, int4 and fp4, not "
            f"{stored or 'an unknown type'}; `fuseq fix` mends it."
        )
    if builder.capability < _FIRST_CAPABILITY[stored]:
        raise TargetError(
            f"node {name!r} ({node.op_type}): {stored} begins with sm{_FIRST_CAPABILITY[stored]}, "
            f"the target is sm{builder.capability}; use int8 or a newer GPU."
        )
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = zero.const_value if zero is not None else None
    if tensor is not None and tensor.numpy().astype("float32").any():
        raise TargetError(
            f"node {name!r} ({node.op_type}): its zero point is not 0; TensorRT takes symmetric "
            "scales alone. `fuseq fix` mends it."
        )
    scale = node.inputs[1].const_value if node.inputs[1] is not None else None
    if scale is not None and not (scale.numpy().astype("float32") > 0).all():
        raise TargetError(
            f"node {name!r} ({node.op_type}): a scale is zero, negative or NaN; calibrate again."
        )


def _check_fp8_convolution(node: ir.Node, name: str) -> None:
    pair, weight = dequantizer(node.inputs[0]), node.inputs[1]
    if pair is None or stored_format(pair) != "fp8" or weight is None or weight.shape is None:
        return
    if dequantizer(weight) is None:
        return
    channels = int(weight.shape.numpy()[1])
    if channels % FP8_CONV_CHANNELS:
        raise TargetError(
            f"node {name!r}: TensorRT has no FP8 convolution over {channels} channels a group, which "
            f"is no multiple of {FP8_CONV_CHANNELS}; leave it in float."
        )


def _check_one_type(node: ir.Node, name: str) -> None:
    words = {
        word
        for value in node.inputs
        if value is not None
        and value.dtype is not None
        and (word := DTYPE_WORDS.get(value.dtype, "")) in FLOATS
    }
    if len(words) > 1:
        raise TargetError(
            f"node {name!r} ({node.op_type}): {' and '.join(sorted(words))} meet, which strong "
            "typing refuses; convert the model to one float type."
        )
