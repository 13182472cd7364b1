"""Step 7: the ML compiler generates one kernel for connected pointwise ops, normalizations, Q and DQ.

Sources: layer lists of TensorRT 10.10 in https://github.com/NVIDIA/TensorRT/issues/4397 (the residual
Add and the LayerNorm behind it are one ``kgen``; bias and activation belong to the GEMM) and of
TensorRT-RTX 1.7, which has the same compiler (LayerNorm, GELU, bias and residual kernels write the
quantized values themselves). Numbered cases:

1. A node joins a generated kernel that makes one of its inputs, if all its other inputs are made
   in earlier slots of the launch order than that kernel's (so no cycle can arise).
2. A kernel holds one row operation (normalization, softmax, reduction); what follows it in another
   row operation starts a new kernel.
3. A node also joins a kernel that reads what the same layer made (Q, K and V of one product).
4. Transposes and slices between products are views: products read and write any strides.
"""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from fuseq.targets.base import KernelType
from fuseq.targets.tensorrt.layers import NO_KERNEL, Layer, Network
from fuseq.targets.tensorrt.operators import (
    NORMALIZATIONS,
    POINTWISE,
    REDUCTIONS,
    SOFTMAXES,
    VIEWS,
)
from fuseq.targets.tensorrt.quantization import is_dequantize, is_quantize

_ROW_OPERATIONS = NORMALIZATIONS | SOFTMAXES | REDUCTIONS
_STRIDED = frozenset({"Transpose", "Slice"})
_PRODUCTS = frozenset({KernelType.GEMM, KernelType.ATTENTION})


@dataclasses.dataclass
class _Kernel:
    """A generated kernel as it grows; ``slot`` is its place in the launch order."""

    layer: Layer
    slot: int
    elements: int
    has_row_operation: bool = False


def fuse_generated(network: Network) -> None:
    """Grow kernels in launch order over the nodes of the generated regions."""
    _make_views(network)
    slots: dict[Layer, int] = {}
    kernels: dict[Layer, _Kernel] = {}
    by_source: dict[Layer | ir.Value, list[_Kernel]] = {}
    for slot, layer in enumerate(network.ordered()):
        slots[layer] = slot
        node = layer.anchor
        if node not in network.generated or len(layer.nodes) > 1 or not _joins(node):
            continue
        sources = [_source(network, root) for root in _roots(network, node)]
        near = [kernel for source in sources for kernel in by_source.get(source, [])]
        near += [kernels[s] for s in sources if isinstance(s, Layer) and s in kernels]
        kernel = _home(network, node, near, slots)
        if kernel is None:
            layer.word = "kgen"
            kernel = kernels[layer] = _Kernel(layer, slot, _elements(node))
        else:
            network.absorb(kernel.layer, [node])
        for source in sources:
            by_source.setdefault(source, []).append(kernel)
        kernel.has_row_operation |= node.op_type in _ROW_OPERATIONS
    _absorb_views(network)
    for kernel in kernels.values():
        kernel.layer.type = _type(kernel.layer)


def _source(network: Network, root: ir.Value) -> Layer | ir.Value:
    """The layer that makes ``root``, or the model's input itself."""
    producer = root.producer()
    return network.owner.get(producer, root) if producer is not None else root


def _joins(node: ir.Node) -> bool:
    return (
        node.op_type in POINTWISE
        or node.op_type in _ROW_OPERATIONS
        or node.op_type == "Transpose"
        or is_quantize(node)
        or is_dequantize(node)
    )


def _home(
    network: Network, node: ir.Node, near: list[_Kernel], slots: dict[Layer, int]
) -> _Kernel | None:
    """The latest kernel that the node may join (cases 1 to 3)."""
    best: _Kernel | None = None
    makers = {maker for value in _roots(network, node) for maker in network.makers(value)}
    for kernel in near:
        if node.op_type in _ROW_OPERATIONS and kernel.has_row_operation:  # case 2
            continue
        if kernel.elements != _elements(node) or (best is not None and kernel.slot <= best.slot):
            continue
        if all(maker is kernel.layer or slots[maker] < kernel.slot for maker in makers):
            best = kernel
    return best


def _roots(network: Network, node: ir.Node) -> list[ir.Value]:
    """Computed inputs, seen through views."""
    found = []
    for value in node.inputs:
        if value is not None and value not in network.constants:
            found.append(network.root(value))
    return found


def _make_views(network: Network) -> None:
    """Case 4: strided moves that only products read, directly or through views."""
    for node in reversed(list(network.graph)):
        if node not in network.generated or not network.is_single(node):
            continue
        if node.op_type == "Slice" or (
            node.op_type in _STRIDED and _read_by_products(network, node)
        ):
            network.owner[node].word = NO_KERNEL


def _absorb_views(network: Network) -> None:
    """A view that leads from a kernel back into the same kernel alone is inside it."""
    for node in reversed(list(network.graph)):
        if not network.is_single(node) or not network.owner[node].is_free:
            continue
        value = node.outputs[0]
        producer = network.root(value).producer()
        home = network.owner.get(producer) if producer is not None else None
        if home is None or home.word != "kgen" or value.is_graph_output() or not value.uses():
            continue
        if all(network.owner.get(use.node) is home for use in value.uses()):
            network.absorb(home, [node])


def _read_by_products(network: Network, node: ir.Node) -> bool:
    value = node.outputs[0]
    if value.is_graph_output():
        return False
    for use in value.uses():
        owner = network.owner.get(use.node)
        if owner is None or not (owner.type in _PRODUCTS or owner.is_free):
            return False
        if owner.is_free and use.node.op_type in VIEWS and not _read_by_products(network, use.node):
            return False
    return True


def _elements(node: ir.Node) -> int:
    """Elements that the kernel walks over: of its first input for a reduction, else of its output."""
    value = node.inputs[0] if node.op_type in REDUCTIONS else node.outputs[0]
    shape = value.shape if value is not None else None
    if shape is None or not shape.is_static():
        return -1
    return math.prod(int(size) for size in shape.numpy())


def _type(layer: Layer) -> KernelType:
    operators = {node.op_type for node in layer.nodes}
    if operators & NORMALIZATIONS:
        return KernelType.NORMALIZATION
    if operators & SOFTMAXES:
        return KernelType.SOFTMAX
    if operators & (POINTWISE - {"Cast"}) or operators & REDUCTIONS:
        return KernelType.ELEMENTWISE
    if "QuantizeLinear" in operators:
        return KernelType.QUANTIZE
    if "DequantizeLinear" in operators:
        return KernelType.DEQUANTIZE
    return KernelType.CAST if "Cast" in operators else KernelType.MOVE
