"""What the optimizer knows about each ONNX operator, as frozen data.

Sources: TensorRT documentation, "Explicit Quantization", section "TensorRT Processing of Q/DQ
Networks" (commuting and quantizable layers), and "Layer Fusion Catalog" (pointwise fusion); the pass
names are those of TensorRT's own verbose log.
"""

from __future__ import annotations

import onnx_ir as ir

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
"""Give a tensor another shape without moving it: ``NoOp`` in a layer list."""

MOVES = frozenset(
    {
        "Transpose", "Slice", "Split", "Gather", "Expand", "Tile", "Concat", "DepthToSpace",
        "SpaceToDepth", "Pad",
    }
)  # fmt: skip

ACTIVATIONS = frozenset(
    {
        "Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid",
        "HardSwish", "Tanh", "Softplus", "Softsign", "Mish", "Gelu", "ThresholdedRelu", "Swish",
    }
)  # fmt: skip

POINTWISE = ACTIVATIONS | frozenset(
    {
        "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Erf", "Exp", "Log", "Sqrt",
        "Reciprocal", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Not", "And",
        "Or", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Where", "Mod", "IsNaN",
        "Cast",
    }
)  # fmt: skip

NORMALIZATIONS = frozenset(
    {
        "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization",
        "LpNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
        "BatchNormalization",
    }
)  # fmt: skip

REDUCTIONS = frozenset(
    {
        "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
        "ReduceSumSquare", "ReduceLogSumExp", "ArgMax", "ArgMin", "CumSum",
    }
)  # fmt: skip

POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"})

SOFTMAXES = frozenset({"Softmax", "LogSoftmax"})

_COMMUTING = VIEWS | frozenset(
    {
        "MaxPool", "GlobalMaxPool", "Transpose", "Slice", "Gather", "Expand", "Tile", "Concat",
        "DepthToSpace", "SpaceToDepth",
    }
)  # fmt: skip
"""``Q(op(x)) == op(Q(x))``. Nearest resizing and padding an image with zeros join them, by attributes:
the latter runs as ``Padding`` in INT8 in the ResNet-50 engine of the trt-engine-explorer examples, and
a pair between it and a convolution keeps the two apart (https://github.com/NVIDIA/TensorRT/issues/2592).
"""


def commutes(node: ir.Node) -> bool:
    """Quantizing before or after ``node`` gives the same, with one scale for the whole tensor."""
    if node.op_type in ("Resize", "Upsample"):
        return node.attributes.get_string("mode", "nearest") == "nearest"
    return node.op_type in _COMMUTING or is_image_padding(node)


def is_image_padding(node: ir.Node) -> bool:
    """Pad with zeros, 0 or more of them, on the last two of four axes (a Padding layer)."""
    if node.op_type != "Pad" or node.attributes.get_string("mode", "constant") != "constant":
        return False
    pads = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] else None
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    if pads is None or pads.size != 8 or len(node.inputs) > 3:
        return False
    amounts = pads.numpy().reshape(2, 4)
    if (amounts < 0).any() or amounts[:, :2].any():
        return False
    return fill is None or (fill.const_value is not None and not fill.const_value.numpy().any())


def data_inputs(node: ir.Node) -> list[ir.Value]:
    """Inputs that carry a commuting operator's values: all of a Concat's, the first of any other."""
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return [value for value in inputs if value is not None]


def is_global_average(node: ir.Node, rank: int | None) -> bool:
    """GlobalAveragePool, or its spelling as the mean over all image axes.

    "A Reduce layer that performs average pooling will be replaced by a Pooling layer" (Layer Fusion
    Catalog, "Reduce"); it names ``keepDimensions``, and a following reshape is free.
    """
    if node.op_type == "GlobalAveragePool":
        return True
    if node.op_type != "ReduceMean" or rank is None or rank < 3:
        return False
    axes = reduced_axes(node, rank)
    return axes == tuple(range(2, rank))


def reduced_axes(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """Axes of a reduction, ascending; None when they are computed at run time."""
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        tensor = node.inputs[1].const_value
        if tensor is None:
            return None
        axes = [int(axis) for axis in tensor.numpy().reshape(-1)]
    if axes is None:
        return tuple(range(rank))
    return tuple(sorted(axis % rank for axis in axes))
