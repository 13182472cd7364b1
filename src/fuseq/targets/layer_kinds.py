"""What one layer of full TensorRT's layer list does: kernel type, products, operand type, constants.

Layer types and parameter names: files of TensorRT 8.4 to 11 written by trtexec with
``--profilingVerbosity=detailed``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from fuseq.targets.base import KernelType, TensorInfo
from fuseq.targets.layer_formats import bits_of, dtype_of

NO_KERNEL = frozenset(
    {
        "noop",
        "constant",
        "signal",
        "wait",
        "shape_call",
        "shapecall",
        "trainstation",
        "devicetoshapehostcopy",
    }
)
"""Layer types that launch nothing on the GPU."""

_EIGHT_BIT = frozenset({"int8", "uint8", "fp8"})

_BY_LAYER_TYPE: tuple[tuple[str, KernelType], ...] = (
    # First match wins: "CaskConvActPool" is a convolution, "CaskPooling" is not.
    ("conv", KernelType.CONVOLUTION),
    ("correlation", KernelType.CONVOLUTION),
    ("matrixmultiply", KernelType.GEMM),
    ("fullyconnected", KernelType.GEMM),
    ("gemm", KernelType.GEMM),
    ("mha", KernelType.ATTENTION),
    ("softmax", KernelType.SOFTMAX),
    ("normalization", KernelType.NORMALIZATION),
    ("pool", KernelType.POOL),
    ("resize", KernelType.RESIZE),
    ("pointwise", KernelType.ELEMENTWISE),
    ("elementwise", KernelType.ELEMENTWISE),
    ("activation", KernelType.ELEMENTWISE),
    ("unary", KernelType.ELEMENTWISE),
    ("shuffle", KernelType.MOVE),
    ("slice", KernelType.MOVE),
    ("padding", KernelType.MOVE),
    ("concat", KernelType.MOVE),
    ("copy", KernelType.MOVE),
    ("gather", KernelType.MOVE),
)

_GENERATED = frozenset({"kgen", "fusion", "runtime_fusion", "myelin", "foreignnode"})

_BY_NODE_WORD: tuple[tuple[str, KernelType], ...] = (
    ("mha", KernelType.ATTENTION),
    ("conv", KernelType.CONVOLUTION),
    ("gemm", KernelType.GEMM),
    ("matmul", KernelType.GEMM),
    ("softmax", KernelType.SOFTMAX),
    ("norm", KernelType.NORMALIZATION),
    ("resize", KernelType.RESIZE),
    ("pool", KernelType.POOL),
)


def kernel_type(
    layer_type: str,
    name: str,
    origin: str,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
) -> KernelType:
    """Say what a layer does.

    1. ``Reformat``, ``Scale`` and ``Quantize`` layers: by the types of their two ends.
    2. Generated kernels (``kgen``, ``fusion``): by the compiler's name, which lists the fused ops.
    3. Everything else: by the layer type's own word.
    """
    lower = layer_type.lower()
    if lower in ("reformat", "scale", "quantize", "dequantize", "cast", "identity"):
        return _boundary_type(origin, inputs, outputs)
    if lower in _GENERATED:
        return _generated_type(name.lower(), inputs, outputs)
    for word, kind in _BY_LAYER_TYPE:
        if word in lower:
            return kind
    return KernelType.OTHER


def _boundary_type(
    origin: str, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> KernelType:
    if not inputs or not outputs:
        return KernelType.OTHER
    before, after = inputs[0].dtype, outputs[0].dtype
    if after in _EIGHT_BIT and (before not in _EIGHT_BIT or origin == "QDQ"):
        return KernelType.QUANTIZE  # 8 bit to 8 bit by a QDQ layer is a change of scale
    if before in _EIGHT_BIT and after not in _EIGHT_BIT:
        return KernelType.DEQUANTIZE
    return KernelType.MOVE if before == after else KernelType.CAST


def _generated_type(
    name: str, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> KernelType:
    for word, kind in _BY_NODE_WORD:
        if word in name:
            return kind
    ops = re.sub(r"_?myl[_0-9]*|^_+|[0-9]+$", "", name)
    if ops in ("cast", "quantize", "dequantize", "quan", "dequ"):
        return _boundary_type("", inputs, outputs)
    if ops in ("move", "resh", "tran", "slice", "conc", "copy", "trans"):
        return KernelType.MOVE
    return KernelType.ELEMENTWISE


def compute_dtype(kind: KernelType, tactic: str, inputs: Sequence[TensorInfo]) -> str:
    """Operand type of a kernel's products; the first input decides, unless the tactic's name says

    1. ``tf32`` or ``s1688``: FP32 tensors through tensor cores, ``tf32``;
    2. ``int8x4``: INT8 on CUDA cores (DP4A), ``int8x4``.
    """
    if kind not in (KernelType.CONVOLUTION, KernelType.GEMM, KernelType.ATTENTION) or not inputs:
        return ""
    dtype = inputs[0].dtype
    if dtype == "fp32" and ("tf32" in tactic or "s1688" in tactic):
        return "tf32"  # case 1
    if dtype == "int8" and "int8x4" in tactic:
        return "int8x4"  # case 2
    return dtype


def weights_bytes(layer: Mapping[str, object]) -> int:
    """Bytes of ``Weights`` and ``Bias`` records (``{"Type": "Int8", "Count": 9408}``)."""
    total = 0
    for key in ("Weights", "Bias", "ConvWeights", "ConvBias"):
        record = layer.get(key)
        if isinstance(record, Mapping):
            count, word = record.get("Count"), record.get("Type")
            if isinstance(count, int) and isinstance(word, str) and count > 0:
                total += math.ceil(count * bits_of(dtype_of(word)) / 8)
    return total


def flops(
    layer: Mapping[str, object],
    kind: KernelType,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
) -> int:
    """Multiply and add counted apart; 0 where the layer's fields do not tell.

    1. Convolution: ``2 N prod(out) OutMaps (C / Groups) prod(Kernel)``; deconvolution the same with
       the input's spatial size.
    2. GEMM: ``2 prod(out) K``, K the axis that both operands share.
    3. Fused attention: ``4 B Sq Skv D``, when Q, K and V are apart.
    """
    if not inputs or not outputs:
        return 0
    if kind is KernelType.CONVOLUTION:
        return _convolution_flops(layer, inputs[0].shape, outputs[0].shape)
    if kind is KernelType.GEMM and len(inputs) > 1:
        return _gemm_flops(inputs[0].shape, inputs[1].shape, outputs[0].shape)
    if kind is KernelType.ATTENTION and len(inputs) > 2:
        return _attention_flops(inputs[0].shape, inputs[1].shape)
    return 0


def _convolution_flops(
    layer: Mapping[str, object], data: tuple[int, ...], out: tuple[int, ...]
) -> int:
    prefix = "Conv" if "ConvKernel" in layer else ""  # ConvActPool lists both ops' parameters
    kernel = _ints(layer.get(prefix + "Kernel"))
    out_maps, groups = layer.get(prefix + "OutMaps"), layer.get(prefix + "Groups")
    if not kernel or not isinstance(out_maps, int) or not isinstance(groups, int) or groups < 1:
        return 0
    if len(data) != len(kernel) + 2:
        return 0
    if "deconv" in str(layer.get("LayerType", "")).lower():
        return 2 * math.prod(data) * (out_maps // groups) * math.prod(kernel)
    spatial = _convolved(layer, prefix, data[2:], kernel) if prefix else out[2:]
    macs = data[0] * math.prod(spatial) * out_maps * (data[1] // groups) * math.prod(kernel)
    return max(2 * macs, 0)


def _convolved(
    layer: Mapping[str, object], prefix: str, size: Sequence[int], kernel: Sequence[int]
) -> tuple[int, ...]:
    """Spatial size behind a convolution: ``(in + pads - dilation (k - 1) - 1) // stride + 1``."""
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    stride = _ints(layer.get(prefix + "Stride")) or ones
    dilation = _ints(layer.get(prefix + "Dilation")) or ones
    before = _ints(layer.get(prefix + "PrePadding")) or zeros
    after = _ints(layer.get(prefix + "PostPadding")) or zeros
    if any(len(numbers) != len(kernel) for numbers in (stride, dilation, before, after)):
        return tuple(size)
    return tuple(
        (size[i] + before[i] + after[i] - dilation[i] * (kernel[i] - 1) - 1) // max(stride[i], 1)
        + 1
        for i in range(len(kernel))
    )


def _gemm_flops(a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...]) -> int:
    if len(a) < 2 or len(b) < 2 or len(out) < 2:
        return 0
    for k in (a[-1], a[-2]):
        if k in b[-2:]:
            return 2 * math.prod(out) * k
    return 0


def _attention_flops(query: tuple[int, ...], key: tuple[int, ...]) -> int:
    if len(query) < 3 or len(key) != len(query):
        return 0
    return 4 * math.prod(query) * key[-2]


def _ints(value: object) -> list[int]:
    """The list when it holds only whole numbers, else an empty list."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return []
    return value
