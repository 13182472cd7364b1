"""What ONNX Runtime's CPU operators do: kernel type, products, operand type. Data and formulas.

Operators of the domains ``ai.onnx``, ``com.microsoft`` and ``com.microsoft.nchwc`` by name; a name
means the same in each (ONNX Runtime documentation, "Contrib operators").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from fuseq.targets.base import KernelType

Shape = tuple[int, ...]

_TYPES: dict[KernelType, str] = {
    KernelType.CONVOLUTION: "Conv ConvTranspose FusedConv QLinearConv ConvInteger NhwcFusedConv",
    KernelType.GEMM: "Gemm MatMul FusedGemm FusedMatMul QGemm QLinearMatMul MatMulInteger "
    "MatMulIntegerToFloat DynamicQuantizeMatMul MatMulNBits Einsum",
    KernelType.ATTENTION: "Attention QAttention MultiHeadAttention GroupQueryAttention",
    KernelType.NORMALIZATION: "LayerNormalization SimplifiedLayerNormalization RMSNormalization "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization "
    "BatchNormalization InstanceNormalization GroupNormalization LpNormalization LRN "
    "MeanVarianceNormalization",
    KernelType.SOFTMAX: "Softmax LogSoftmax QLinearSoftmax BiasSoftmax",
    KernelType.POOL: "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool NhwcMaxPool "
    "QLinearAveragePool QLinearGlobalAveragePool ReduceMean ReduceMax ReduceMin ReduceSum "
    "ReduceL1 ReduceL2 ReduceProd ReduceSumSquare ReduceLogSumExp QLinearReduceMean",
    KernelType.RESIZE: "Resize Upsample",
    KernelType.QUANTIZE: "QuantizeLinear DynamicQuantizeLinear",
    KernelType.DEQUANTIZE: "DequantizeLinear",
    KernelType.CAST: "Cast CastLike",
    KernelType.MOVE: "Transpose Reshape Flatten Squeeze Unsqueeze Identity Concat QLinearConcat "
    "Split Slice Gather GatherElements GatherND Scatter ScatterElements ScatterND Expand Tile Pad "
    "DepthToSpace SpaceToDepth ReorderInput ReorderOutput",
    KernelType.ELEMENTWISE: "Add Sub Mul Div Pow Max Min Sum Mean Neg Abs Sqrt Exp Log Erf Floor "
    "Ceil Round Reciprocal Sign Sin Cos Mod Clip Relu LeakyRelu PRelu Elu Selu Celu Sigmoid "
    "HardSigmoid HardSwish Tanh Softplus Softsign Mish Gelu FastGelu BiasGelu QuickGelu Swish "
    "ThresholdedRelu BiasAdd Where QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu "
    "QLinearWhere Equal Greater GreaterOrEqual Less LessOrEqual And Or Not Xor IsNaN IsInf",
}

_TYPE_OF = {name: kind for kind, names in _TYPES.items() for name in names.split()}

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators whose output is their input's memory: they move nothing."""

_WEIGHT_INPUT = {"QLinearConv": 3, "QLinearMatMul": 3, "QGemm": 3}
"""Place of the second operand where it is not 1: quantized operators put scale and zero point first."""

_INTEGER_PRODUCTS = frozenset(
    (
        *("QLinearConv", "ConvInteger", "QGemm", "QLinearMatMul", "QAttention"),
        *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
    )
)


def kernel_type(op_type: str) -> KernelType:
    """The kernel type of an operator; OTHER for one that is not listed."""
    return _TYPE_OF.get(op_type, KernelType.OTHER)


def compute_dtype(op_type: str, input_words: Sequence[str]) -> str:
    """Type of the products' operands: ``int8``, the first input's type, or "" without products."""
    if op_type in _INTEGER_PRODUCTS:
        return "int8"
    if kernel_type(op_type) in (KernelType.CONVOLUTION, KernelType.GEMM, KernelType.ATTENTION):
        return input_words[0] if input_words else ""
    return ""


def flops(node: ir.Node, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Two for each multiply-accumulate of the operator's definition; 0 without products.

    Args:
        node: A node of the optimized graph.
        inputs: Shape of every input in its place, None where it is absent.
        outputs: Shape of every output.

    Cases:
        1. Conv [N, C, ...] with weight [O, C/g, ...]: 2 x outputs x C/g x window.
        2. ConvTranspose with weight [C, O/g, ...]: 2 x inputs x O/g x window.
        3. MatMul and Gemm: 2 x outputs x K, K the last axis of A (the second last if transposed).
        4. Attention [.., S, E] x [.., T, E]: 4 x batch x S x T x E; packed weights add their GEMM.
    """
    kind = kernel_type(node.op_type)
    if kind not in (KernelType.CONVOLUTION, KernelType.GEMM, KernelType.ATTENTION) or not outputs:
        return 0
    data = _at(inputs, 0)
    weight = _at(inputs, _WEIGHT_INPUT.get(node.op_type, 1))
    if not data or (weight is None and node.op_type != "MatMulNBits"):
        return 0
    if kind is KernelType.CONVOLUTION and weight is not None:
        if node.op_type == "ConvTranspose":
            return 2 * math.prod(data) * math.prod(weight[1:])
        return 2 * math.prod(outputs[0]) * math.prod(weight[1:])
    if kind is KernelType.ATTENTION and weight is not None:
        return _attention_flops(node.op_type, data, weight)
    if node.op_type == "Einsum":
        return 0  # its products depend on the equation, and no exporter writes it for a GEMM
    transposed = node.attributes.get_int("transA", 0)
    depth = data[-2] if transposed and len(data) > 1 else data[-1]
    return 2 * math.prod(outputs[0]) * depth


def _attention_flops(op_type: str, data: Shape, second: Shape) -> int:
    if op_type == "QAttention" or (op_type == "Attention" and len(second) == 2):
        batch, length = data[:2]  # com.microsoft: second is the packed weight [E, 3 E']
        return 2 * math.prod(data) * second[1] + 4 * batch * length**2 * (second[1] // 3)
    return 4 * math.prod(data) * second[-2]


def _at(shapes: Sequence[Shape | None], index: int) -> Shape | None:
    return shapes[index] if index < len(shapes) else None
