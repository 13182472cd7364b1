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
    is_image_padding,
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
        order: Number of the anchor in the graph.
        operands: Format of the operands of its products and of the data of its pools and pointwise
            layers when they are quantized: ``int8``, ``fp8``; "" for float.
        residual: The value that a fused Add takes besides the product, if there is one.
        has_activation: An activation is fused, so no Add can be fused any more.
    """

    anchor: ir.Node
    type: KernelType
    word: str
    nodes: list[ir.Node]
    order: int
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

    def root(self, value: ir.Value) -> ir.Value:
        """The tensor that ``value`` is a view of; a Concat without a copy is a tensor of its own."""
        while True:
            producer = value.producer()
            if producer is None or producer not in self.owner or producer.op_type == "Concat":
                return value
            source = producer.inputs[0] if producer.inputs else None
            if not self.owner[producer].is_free or source is None:
                return value
            value = source

    def makers(self, value: ir.Value) -> list[Layer]:
        """Layers that launch something and must be done before ``value`` can be read."""
        producer = self.root(value).producer()
        if producer is None or producer not in self.owner:
            return []
        layer = self.owner[producer]
        if not layer.is_free:
            return [layer]
        inputs = [source for source in producer.inputs if source is not None]
        return [maker for source in inputs for maker in self.makers(source)]

    def ordered(self) -> list[Layer]:
        """Layers that launch something, each behind those it reads from; ties as in the graph."""
        position = {node: number for number, node in enumerate(self.graph)}
        layers = list(dict.fromkeys(self.owner[node] for node in self.graph if node in self.owner))
        layers = [layer for layer in layers if not layer.is_free]
        rank = {layer: max(position[node] for node in layer.nodes) for layer in layers}
        waits = {
            layer: {m for v in self.runtime_inputs(layer) for m in self.makers(v)} - {layer}
            for layer in layers
        }
        feeds: dict[Layer, list[Layer]] = {layer: [] for layer in layers}
        for layer in layers:
            for maker in waits[layer]:
                feeds[maker].append(layer)
        ready = [(rank[layer], layer.order) for layer in layers if not waits[layer]]
        by_order = {layer.order: layer for layer in layers}
        heapq.heapify(ready)
        result = []
        while ready:
            layer = by_order[heapq.heappop(ready)[1]]
            result.append(layer)
            for reader in feeds[layer]:
                waits[reader].discard(layer)
                if not waits[reader]:
                    heapq.heappush(ready, (rank[reader], reader.order))
        assert len(result) == len(layers), "a rule fused layers into a cycle"
        return result


def network_of(graph: ir.Graph, builder: Builder) -> Network:
    """One layer a node, but for nodes whose result is known at build time."""
    constants: set[ir.Value] = set(graph.initializers.values())
    owner: dict[ir.Node, Layer] = {}
    for number, node in enumerate(graph):
        reads = [value for value in node.inputs if value is not None]
        is_known = bool(reads) and all(value in constants for value in reads)
        if is_known or node.op_type == "Constant":
            constants.update(node.outputs)
        else:
            kind, word = _kind_of(node)
            owner[node] = Layer(node, kind, word, [node], number)
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
    if is_image_padding(node):
        return KernelType.MOVE, "Padding"
    for operators, kind, word in _KINDS:
        if node.op_type in operators:
            return kind, word
    if node.op_type in POINTWISE:
        return KernelType.ELEMENTWISE, "PointWiseV2"
    return KernelType.OTHER, node.op_type
