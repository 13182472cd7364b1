"""Tell from the operators whether a tensor can hold a negative value."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, is_op, scalar
from fuseq.passes.quantizers import is_dequantize, read_quantizer

_ALWAYS = frozenset(
    {
        "Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs", "Exp", "Sqrt", "Softplus",
        "ReduceSumSquare", "ReduceL1", "ReduceL2", "ThresholdedRelu",
    }
)  # fmt: skip
_AS_INPUT = frozenset(
    {
        "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax",
        "ReduceMin", "ReduceSum", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze",
        "Identity", "Cast", "Slice", "Split", "Gather", "Expand", "Tile", "Dropout", "Upsample",
        "DepthToSpace", "SpaceToDepth", "QuantizeLinear",
    }
)  # fmt: skip
_AS_ALL_INPUTS = frozenset({"Concat", "Add", "Mul", "Sum", "Min"})
_LARGEST_CONSTANT = 1 << 22
_DEPTH = 64


def never_negative(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Whether every value of the tensor is 0 or above, whatever the inputs of the model are.

    1. An operator whose result never is negative, or Clip and Max from 0 up.
    2. An operator that moves, averages or picks values of a tensor that is not.
    3. Sums and products of such tensors; a product of a tensor with itself.
    4. A constant without negative values; a DequantizeLinear whose smallest value is 0.
    """
    if value is None or depth == 0:
        return False
    tensor = constant(value)
    if tensor is not None:  # case 4
        small = tensor.size <= _LARGEST_CONSTANT
        return small and bool((np.asarray(tensor.numpy(), dtype=np.float64) >= 0).all())
    node = value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type in _ALWAYS or _is_clipped(node) or _is_unsigned(node):
        return True
    if node.op_type in _AS_INPUT or _is_nearest(node):
        return never_negative(node.inputs[0], depth - 1)
    if is_op(node, "Mul") and node.inputs[0] is node.inputs[1]:
        return True
    if node.op_type in _AS_ALL_INPUTS:
        return all(never_negative(each, depth - 1) for each in node.inputs)
    return is_op(node, "Max") and any(never_negative(each, depth - 1) for each in node.inputs)


def _is_clipped(node: ir.Node) -> bool:
    low = scalar(node.inputs[1]) if is_op(node, "Clip") and len(node.inputs) > 1 else None
    return low is not None and low >= 0


def _is_nearest(node: ir.Node) -> bool:
    """Cubic interpolation can overshoot below 0."""
    return is_op(node, "Resize") and node.attributes.get_string("mode", "nearest") != "cubic"


def _is_unsigned(node: ir.Node) -> bool:
    by = read_quantizer(node) if is_dequantize(node) else None
    return by is not None and not isinstance(by, str) and bool((by.zero_point <= by.qmin).all())
