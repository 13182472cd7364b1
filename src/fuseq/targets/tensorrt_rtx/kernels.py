"""Turns layers of the TensorRT-RTX builder into kernels.

What its words mean (seen with TensorRT-RTX 1.7.1): ``kgen`` is a generated kernel, ``correlation``
a convolution, ``gemm`` a matrix product, ``runtime_fusion`` a product with a fused epilogue, and a
``kgen`` named ``_gemm_mha_v*`` a fused attention. ``signal``, ``wait`` and shape entries launch
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fuseq.targets.base import Kernel, KernelType, TensorInfo
from fuseq.targets.tensorrt_rtx.layers import Layer, LayerTensor

NOT_KERNELS = frozenset({"signal", "wait", "shape_call", "shape", "constant", "host"})
"""Layer types that launch nothing on the device."""

_QUANTIZE_OPS = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast"})
_TRANSPOSED = frozenset({"deconv", "deconvolution"})
_CONVOLUTIONS = frozenset({"correlation", "convolution"}) | _TRANSPOSED
_POOLS = frozenset({"maxpool", "avgpool", "pooling", "pool"})
_NORMALIZATIONS = frozenset(
    {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"}
)
_PRODUCT_DTYPES = frozenset({"fp32", "fp16", "bf16", "fp8", "int8", "fp4"})
_MOVES = frozenset({"Transpose", "Reshape", "Slice", "Split", "Concat", "Expand", "Gather", "Pad"})


def kernels_of(
    layers: list[Layer], op_types: Mapping[str, str], lines: Mapping[str, str]
) -> tuple[Kernel, ...]:
    """Make kernels, in launch order.

    Args:
        layers: What :func:`parse_layers` read.
        op_types: ONNX operator by node name, of the model that was compiled.
        lines: Source line of the user's model by node name, where the file carries it.
    """
    return tuple(
        _kernel(layer, op_types, lines) for layer in layers if layer.type not in NOT_KERNELS
    )


def _kernel(layer: Layer, op_types: Mapping[str, str], lines: Mapping[str, str]) -> Kernel:
    operators = {op_types.get(node, "") for node in layer.nodes}
    kind = _type(layer, operators)
    operands = [tensor for tensor in layer.inputs if tensor.dtype in _PRODUCT_DTYPES]
    product = kind in (KernelType.CONVOLUTION, KernelType.GEMM, KernelType.ATTENTION)
    return Kernel(
        name=layer.name,
        type=kind,
        compiler_type=layer.type,
        inputs=tuple(_info(tensor) for tensor in _distinct(layer.inputs)),
        outputs=tuple(_info(tensor) for tensor in layer.outputs),
        weights_bytes=sum(tensor.nbytes for tensor in _distinct(layer.constants)),
        flops=_flops(layer, kind),
        compute_dtype=operands[0].dtype if product and operands else "",
        nodes=layer.nodes,
        source_lines=tuple(dict.fromkeys(lines[node] for node in layer.nodes if node in lines)),
    )


def _type(layer: Layer, operators: set[str]) -> KernelType:
    if layer.name.startswith("_gemm_mha"):
        return KernelType.ATTENTION
    if layer.type in _CONVOLUTIONS:
        return KernelType.CONVOLUTION
    if layer.type == "gemm":
        return KernelType.GEMM
    if layer.type == "runtime_fusion":
        is_convolution = any(len(tensor.shape) > 2 for tensor in _weights(layer)) and bool(
            operators & {"Conv", "ConvTranspose"}
        )
        return KernelType.CONVOLUTION if is_convolution else KernelType.GEMM
    if layer.type in _POOLS:
        return KernelType.POOL
    return _generated_type(layer, operators)


def _generated_type(layer: Layer, operators: set[str]) -> KernelType:
    if operators and operators <= _QUANTIZE_OPS:
        if "QuantizeLinear" in operators:
            return KernelType.QUANTIZE
        return KernelType.DEQUANTIZE if "DequantizeLinear" in operators else KernelType.CAST
    if operators & _NORMALIZATIONS:
        return KernelType.NORMALIZATION
    if "Softmax" in operators:
        return KernelType.SOFTMAX
    if "Resize" in operators or "Upsample" in operators:
        return KernelType.RESIZE
    if operators <= _MOVES | _QUANTIZE_OPS and _same_dtype(layer):
        return KernelType.MOVE
    return KernelType.ELEMENTWISE


def _same_dtype(layer: Layer) -> bool:
    return len({tensor.dtype for tensor in layer.inputs + layer.outputs}) <= 1


def _flops(layer: Layer, kind: KernelType) -> int:
    """Two per multiply-add.

    Attention: Q [B, M, E] x K [B, E, N], then [B, M, N] x V [B, N, E]: 4 B M N E.
    Convolution: every output element is a dot product over C/groups x kernel elements; a transposed
    one visits every input element instead.
    """
    if not layer.outputs or not layer.inputs:
        return 0
    first, out = layer.inputs[0].shape, layer.outputs[0].shape
    if kind is KernelType.ATTENTION:
        return _attention_flops(layer, out)
    if kind is KernelType.CONVOLUTION and layer.type != "runtime_fusion":
        weight = next((t.shape for t in _weights(layer) if len(t.shape) > 2), None)
        if weight is None and len(layer.inputs) > 1:
            weight = layer.inputs[1].shape
        if weight is None:
            return 0
        dense = first if layer.type in _TRANSPOSED else out
        return 2 * math.prod(dense) * math.prod(weight[1:])
    if kind in (KernelType.GEMM, KernelType.CONVOLUTION):
        return _product_flops(layer, out)
    return 0


def _product_flops(layer: Layer, out: tuple[int, ...]) -> int:
    """2 M N K from the sizes alone, whichever way the operands are laid out.

    Sizes are M K, K N and M N times the batch they share, so their product is (M N K)^2 B^3 for
    operands that both have the batch, (M N K)^2 B^2 where the weight has none.
    """
    left, right, batch = _operands(layer)
    product = math.prod(left) * math.prod(right) * math.prod(out)
    return 2 * math.isqrt(product // max(batch, 1))


def _operands(layer: Layer) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shapes of both operands, and the batch counted once too often in their sizes' product."""
    out = math.prod(layer.outputs[0].shape)
    weight: tuple[int, ...] = next((t.shape for t in _weights(layer) if len(t.shape) > 1), ())
    if math.prod(weight) > max(layer.outputs[0].shape):
        for tensor in layer.inputs:
            product = math.prod(tensor.shape) * math.prod(weight) * out
            if product and math.isqrt(product) ** 2 == product:
                return tensor.shape, weight, 1
    matrices = [tensor.shape for tensor in layer.inputs if len(tensor.shape) > 1]
    if len(matrices) < 2:
        return layer.inputs[0].shape, weight, 1
    return matrices[0], matrices[1], math.prod(matrices[0][:-2])


def _attention_flops(layer: Layer, out: tuple[int, ...]) -> int:
    """4 B M N E for out [B, M, E]: N keys come from the sizes of Q, K and V, in whatever order."""
    batch = math.prod(out[:-2])
    operands = [math.prod(tensor.shape) for tensor in _attention_operands(layer)]
    if len(operands) < 3 or not math.prod(out):
        return 0
    keys = math.isqrt(math.prod(operands[:3]) // math.prod(out)) // (batch * out[-1])
    return 4 * math.prod(out) * keys


def _attention_operands(layer: Layer) -> list[LayerTensor]:
    """Q, K and V: what has the batch of the output; masks are bool or broadcast over the heads."""
    batch = math.prod(layer.outputs[0].shape[:-2])
    return [
        tensor
        for tensor in layer.inputs
        if tensor.dtype in _PRODUCT_DTYPES and math.prod(tensor.shape[:-2]) == batch
    ]


def _weights(layer: Layer) -> list[LayerTensor]:
    return sorted(layer.constants, key=lambda tensor: -tensor.nbytes)


def _distinct(tensors: tuple[LayerTensor, ...]) -> list[LayerTensor]:
    """A tensor read twice by one kernel moves once."""
    return list({tensor.name: tensor for tensor in tensors}.values())


def _info(tensor: LayerTensor) -> TensorInfo:
    return TensorInfo(tensor.name, tensor.shape, tensor.dtype, tensor.nbytes)
