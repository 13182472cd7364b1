"""Which nodes the ML compiler (Myelin, ``ForeignNode`` in TensorRT's log) takes.

Connected subgraphs with matrix products or normalizations go to it as a whole; convolutions, pools
and resizes between them do not (layer lists in https://github.com/NVIDIA/TensorRT/issues/4397).
There, kernels are generated: pointwise ops, normalizations, Q and DQ share kernels freely.
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.targets.tensorrt.layers import Network
from fuseq.targets.tensorrt.operators import CONVOLUTIONS, NORMALIZATIONS, POOLS, is_global_average

_ANCHORS = (NORMALIZATIONS - {"BatchNormalization"}) | {
    "Einsum", "Attention", "MultiHeadAttention",
}  # fmt: skip
_CLASSIC = CONVOLUTIONS | POOLS | {"Resize", "Upsample"}


def generated_nodes(network: Network) -> frozenset[ir.Node]:
    """Nodes of every connected subgraph, cut at convolutions, pools and resizes, with an anchor."""
    nodes = [node for node in network.owner if not _is_classic(node)]
    inside = set(nodes)
    found: set[ir.Node] = set()
    seen: set[ir.Node] = set()
    for start in nodes:
        if start in seen:
            continue
        component = _component(start, inside, network)
        seen |= component
        if any(_is_anchor(node, network) for node in component):
            found |= component
    return frozenset(found)


def _is_anchor(node: ir.Node, network: Network) -> bool:
    if node.op_type == "MatMul":
        return not is_fully_connected(node, network)
    return node.op_type in _ANCHORS


def is_fully_connected(node: ir.Node, network: Network) -> bool:
    """A product of a matrix and constant weights, which the classic optimizer runs as a 1x1
    convolution (``fc`` of the ResNet-18 engines, a MatMul in the ResNet-50 engine)."""
    if node.op_type not in ("Gemm", "MatMul"):
        return False
    data, weight = node.inputs[0], node.inputs[1]
    return (
        data is not None
        and data.shape is not None
        and len(data.shape) == 2
        and weight in network.constants
    )


def _is_classic(node: ir.Node) -> bool:
    source = node.inputs[0] if node.inputs else None
    rank = len(source.shape) if source is not None and source.shape is not None else None
    return node.op_type in _CLASSIC or (rank == 4 and is_global_average(node, rank))


def _component(start: ir.Node, inside: set[ir.Node], network: Network) -> set[ir.Node]:
    component, stack = {start}, [start]
    while stack:
        node = stack.pop()
        near = [value.producer() for value in node.inputs if value is not None]
        near += [use.node for value in node.outputs for use in value.uses()]
        for other in near:
            if other is not None and other in inside and other not in component:
                component.add(other)
                stack.append(other)
    return component
