"""The optimizer's state: which nodes run in which launch. Rules fuse by moving nodes into a layer."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable

import onnx_ir as ir

from fuseq.targets.base import KernelType
from fuseq.targets.tensorrt.builder import Builder
from fuseq.targets.tensorrt.operators import (
    CONVOLUTIONS,
    MOVES,
    NORMALIZATIONS,
    POINTWISE,
    POOLS,
    PRODUCTS,
    REDUCTIONS,
    SOFTMAXES,
    VIEWS,
)
from fuseq.targets.tensorrt.quantization import is_dequantize, is_quantize


@dataclasses.dataclass(eq=False)
class Layer:
    """One launch in the making.

    Attributes:
        anchor: The node that decides what it is.
        type: What it does.
        word: TensorRT's layer type (``CaskConvolution``, ``PointWiseV2`` ...).
        nodes: Nodes that run in it; the anchor is one of them.
        operands: Format of the operands of its products and of the data of its pools and pointwise
            layers when they are quantized: ``int8``, ``fp8``; "" for float.
        residual: The value that a fused Add takes besides the product, if there is one.
        has_activation: An activation is fused, so no Add can be fused any more.
    """

    anchor: ir.Node
    type: KernelType
    word: str
    nodes: list[ir.Node]
    operands: str = ""
    residual: ir.Value | None = None
    has_activation: bool = False

    @property
    def is_free(self) -> bool:
        """It launches nothing: a view of a tensor, or a copy that the optimizer eliminates."""
        return self.word == NO_KERNEL


NO_KERNEL = "NoOp"


@dataclasses.dataclass
class Network:
    """The prepared graph and its layers.

    Attributes:
        graph: The prepared copy; rules read it.
        builder: Settings of the build.
        constants: Values known at build time: initializers and what is computed from them alone.
        owner: Layer of each node that runs.
        generated: Nodes that the ML compiler (Myelin) takes instead of the classic optimizer.
        notes: Sentences for the user.
    """

    graph: ir.Graph
    builder: Builder
    constants: set[ir.Value]
    owner: dict[ir.Node, Layer]
    generated: frozenset[ir.Node] = frozenset()
    notes: list[str] = dataclasses.field(default_factory=list)

    def absorb(self, layer: Layer, nodes: Iterable[ir.Node]) -> None:
        """Move ``nodes``, with all that their layers hold, into ``layer``."""
        for node in nodes:
            other = self.owner[node]
            if other is layer:
                continue
            layer.nodes.extend(other.nodes)
            for moved in other.nodes:
                self.owner[moved] = layer

    def is_single(self, node: ir.Node) -> bool:
        """No rule has fused anything with ``node`` yet."""
        return node in self.owner and len(self.owner[node].nodes) == 1

    def runtime_inputs(self, layer: Layer) -> list[ir.Value]:
        """Values that ``layer`` reads and does not make, constants left out, in reading order."""
        inside = set(layer.nodes)
        found: dict[ir.Value, None] = {}
        for node in layer.nodes:
            for value in node.inputs:
                if value is None or value in self.constants:
                    continue
                if value.producer() not in inside:
                    found[value] = None
        return list(found)

    def outputs(self, layer: Layer) -> list[ir.Value]:
        """Values that ``layer`` makes and others, or the model's output, read."""
        inside = set(layer.nodes)
        return [
            value
            for node in layer.nodes
            for value in node.outputs
            if value.is_graph_output() or any(use.node not in inside for use in value.uses())
        ]

    def ordered(self) -> list[Layer]:
        """Layers in an order in which each finds its inputs made; ties as in the graph."""
        position = {node: number for number, node in enumerate(self.graph)}
        layers = list(dict.fromkeys(self.owner[node] for node in self.graph if node in self.owner))
        key = {layer: max(position[node] for node in layer.nodes) for layer in layers}
        waits: dict[Layer, set[Layer]] = {layer: set() for layer in layers}
        feeds: dict[Layer, set[Layer]] = {layer: set() for layer in layers}
        for layer in layers:
            for value in self.runtime_inputs(layer):
                producer = value.producer()
                if producer is not None and producer in self.owner:
                    waits[layer].add(self.owner[producer])
                    feeds[self.owner[producer]].add(layer)
        ready = [
            (key[layer], number, layer) for number, layer in enumerate(layers) if not waits[layer]
        ]
        heapq.heapify(ready)
        numbers = {layer: number for number, layer in enumerate(layers)}
        result = []
        while ready:
            _, _, layer = heapq.heappop(ready)
            result.append(layer)
            for reader in feeds[layer]:
                waits[reader].discard(layer)
                if not waits[reader]:
                    heapq.heappush(ready, (key[reader], numbers[reader], reader))
        assert len(result) == len(layers), "a rule fused layers into a cycle"
        return result


def network_of(graph: ir.Graph, builder: Builder) -> Network:
    """One layer a node, but for nodes whose result is known at build time."""
    constants: set[ir.Value] = set(graph.initializers.values())
    owner: dict[ir.Node, Layer] = {}
    for node in graph:
        reads = [value for value in node.inputs if value is not None]
        is_known = bool(reads) and all(value in constants for value in reads)
        if is_known or node.op_type == "Constant":
            constants.update(node.outputs)
        else:
            kind, word = _kind_of(node)
            owner[node] = Layer(node, kind, word, [node])
    return Network(graph, builder, constants, owner)


_KINDS: tuple[tuple[frozenset[str], KernelType, str], ...] = (
    (CONVOLUTIONS, KernelType.CONVOLUTION, "CaskConvolution"),
    (PRODUCTS, KernelType.GEMM, "gemm"),
    (frozenset({"Attention", "MultiHeadAttention"}), KernelType.ATTENTION, "kgen"),
    (POOLS, KernelType.POOL, "CudaPooling"),
    (frozenset({"Resize", "Upsample"}), KernelType.RESIZE, "Resize"),
    (SOFTMAXES, KernelType.SOFTMAX, "CudaSoftMax"),
    (NORMALIZATIONS, KernelType.NORMALIZATION, "Normalization"),
    (REDUCTIONS, KernelType.OTHER, "Reduce"),
    (VIEWS, KernelType.MOVE, NO_KERNEL),
    (MOVES, KernelType.MOVE, "Shuffle"),
    (frozenset({"Cast"}), KernelType.CAST, "Reformat"),
)


def _kind_of(node: ir.Node) -> tuple[KernelType, str]:
    if is_quantize(node):
        return KernelType.QUANTIZE, "Reformat"
    if is_dequantize(node):
        return KernelType.DEQUANTIZE, "Reformat"
    for operators, kind, word in _KINDS:
        if node.op_type in operators:
            return kind, word
    if node.op_type in POINTWISE:
        return KernelType.ELEMENTWISE, "PointWiseV2"
    return KernelType.OTHER, node.op_type
