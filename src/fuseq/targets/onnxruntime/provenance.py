"""Which ONNX nodes an optimized node came from.

ONNX Runtime keeps no record of what it fused, but the names that it makes up contain the name of a
node or tensor that it replaced (``<node>_token_1``, ``<tensor>_nchwc``, ``<node>/QuickGeluFusion/``).
So it is given a copy in which nodes are called ``@17@`` and their outputs ``@17.0@``:

1. A mark found in an optimized node's name or outputs anchors that ONNX node to it.
2. An ONNX node without an anchor was fused. DequantizeLinear belongs to its reader, QuantizeLinear
   to its producer; an Add, Relu or Clip behind a convolution's kernel to that kernel; any other node
   to the kernel that its result reaches without passing a Q or DQ (a Conv under the name of its
   Clip), else to the kernel of its producer (a Clip before a Q).
3. Optimized nodes without a mark (layout changes) came from no ONNX node.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence, Set

import onnx_ir as ir

_LAYOUT = frozenset({"Transpose", "ReorderInput", "ReorderOutput"})
"""Layout changes inherit the name of the tensor that they pass on."""

_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcFusedConv"})
_ABSORBED = frozenset({"Add", "Relu", "Clip"})
"""What the kernels of :data:`_CONVOLUTIONS` take in behind the product."""

_MARK = re.compile(r"@(\d+)(?:\.(\d+))?@")


@dataclasses.dataclass(frozen=True)
class Marked:
    """A marked copy of a model, with the original nodes in the order of their marks."""

    model: ir.Model
    nodes: tuple[ir.Node, ...]

    def tensor_name(self, name: str) -> str:
        """The original name of a tensor of the optimized graph; its own where it is new."""
        found = _MARK.search(name)
        if found is None:
            return name
        outputs = self.nodes[int(found.group(1))].outputs
        return outputs[int(found.group(2) or 0)].name or name

    def node_name(self, name: str) -> str:
        """An optimized node's name with the original node's in place of each mark."""
        return _MARK.sub(lambda found: self.nodes[int(found.group(1))].name or "", name)


def mark(model: ir.Model) -> Marked:
    """Copy ``model`` with marked names; graph inputs and initializers keep theirs."""
    copy = model.clone()
    for number, node in enumerate(copy.graph):
        node.name = f"@{number}@"
        for index, value in enumerate(node.outputs):
            if value.name:
                value.name = f"@{number}.{index}@"
    return Marked(copy, tuple(model.graph))


def unmarked(optimized: ir.Model, marked: Marked) -> bytes:
    """The optimized model as a file whose outputs have their original names again."""
    copy = optimized.clone()
    for value in copy.graph.outputs:
        value.name = marked.tensor_name(value.name or "")
    return bytes(ir.to_proto(copy).SerializeToString())


def origins(marked: Marked, optimized: ir.Graph) -> dict[str, tuple[int, ...]]:
    """Numbers of the original nodes of every optimized node, by its name."""
    owner: dict[int, str] = {}
    for node in optimized:
        for number in _marks(node):
            if node.op_type not in _LAYOUT or marked.nodes[number].op_type == node.op_type:
                owner.setdefault(number, node.name or "")
    convolutions = {node.name or "" for node in optimized if node.op_type in _CONVOLUTIONS}
    _assign_fused(marked.nodes, owner, convolutions)
    found: dict[str, list[int]] = {node.name or "": [] for node in optimized}
    for number, name in owner.items():
        found[name].append(number)
    return {name: tuple(sorted(numbers)) for name, numbers in found.items()}


def _marks(node: ir.Node) -> list[int]:
    texts = [node.name or "", *(value.name or "" for value in node.outputs)]
    return [int(found.group(1)) for text in texts for found in _MARK.finditer(text)]


def _assign_fused(
    nodes: tuple[ir.Node, ...], owner: dict[int, str], convolutions: Set[str]
) -> None:
    numbers = {node: number for number, node in enumerate(nodes)}
    fused = [number for number in range(len(nodes)) if number not in owner]
    _assign_to_readers([n for n in fused if nodes[n].op_type == "Conv"], nodes, numbers, owner)
    for number in fused:
        if nodes[number].op_type in _ABSORBED:
            kernels = _producer_kernels(nodes[number], numbers, owner)
            kernel = next((name for name in reversed(kernels) if name in convolutions), None)
            if kernel is not None:
                owner[number] = kernel
    _assign_to_readers(fused, nodes, numbers, owner)
    for number, node in enumerate(nodes):  # producers before readers
        if number not in owner:
            kernels = _producer_kernels(node, numbers, owner)
            if kernels:
                owner[number] = kernels[0]


def _assign_to_readers(
    fused: Sequence[int],
    nodes: tuple[ir.Node, ...],
    numbers: Mapping[ir.Node, int],
    owner: dict[int, str],
) -> None:
    for number in reversed(fused):  # readers before producers
        if number not in owner and nodes[number].op_type != "QuantizeLinear":
            kernel = _reader_kernel(nodes[number], numbers, owner)
            if kernel is not None:
                owner[number] = kernel


def _producer_kernels(
    node: ir.Node, numbers: Mapping[ir.Node, int], owner: Mapping[int, str]
) -> list[str]:
    """Kernels of the node's inputs, in the order in which their producers stand in the graph."""
    producers = [value.producer() for value in node.inputs if value is not None]
    found = sorted(numbers[each] for each in producers if each is not None and each in numbers)
    return [owner[number] for number in found if number in owner]


def _reader_kernel(
    node: ir.Node, numbers: Mapping[ir.Node, int], owner: Mapping[int, str]
) -> str | None:
    for value in node.outputs:
        for use in value.uses():
            reader = use.node
            if reader.op_type in ("QuantizeLinear", "DequantizeLinear"):
                continue
            number = numbers.get(reader)
            if number is not None and number in owner:
                return owner[number]
    return None
