"""Sets of channels that can be scaled without changing a model's outputs. Reads only.

A class is all tensors whose channel i must be scaled by one factor: what goes into and comes out of
operators with ``f(s x) = s f(x)`` channel by channel, and the terms of a sum with it.

1. Layers with constant weights (Conv, Gemm, MatMul; grouped and depthwise too) end a class: those that
   write take ``1 / s`` into their weights and bias, those that read take ``s``.
2. Relu, LeakyRelu and pools pass it on; an Add of two tensors of one shape makes its terms one class;
   so does what takes the ones off ``[N, C, 1, 1]``.
3. Every other operator, an input or output of the graph, and a weight that others read fix the scale
   of what they touch: such a class is no answer. Clip (ReLU6) is one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from fuseq.placement.patterns import Weighted, is_float_activation, weighted

_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool"})
_FLATTENING = frozenset({"Flatten", "Reshape", "Squeeze"})


@dataclasses.dataclass(frozen=True)
class ChannelClass:
    """Layers that write and that read the same channels; at least one of each."""

    writers: tuple[Weighted, ...]
    readers: tuple[Weighted, ...]


@dataclasses.dataclass
class _Set:
    """One class while it grows; ``flattened``: [N, C, 1, 1] and [N, C] are both in it."""

    writers: list[Weighted] = dataclasses.field(default_factory=list)
    readers: list[Weighted] = dataclasses.field(default_factory=list)
    is_fixed: bool = False
    flattened: bool = False


class _Sets:
    """Values joined into sets, in the order in which they were met."""

    def __init__(self) -> None:
        """Begin with no value."""
        self._root: dict[ir.Value, ir.Value] = {}
        self._sets: dict[ir.Value, _Set] = {}

    def of(self, value: ir.Value) -> _Set:
        """The set that a value is in."""
        return self._sets[self._find(value)]

    def join(self, one: ir.Value, other: ir.Value) -> None:
        """Two values have the same channels."""
        left, right = self._find(one), self._find(other)
        if left is right:
            return
        kept, gone = self._sets[left], self._sets.pop(right)
        kept.writers += gone.writers
        kept.readers += gone.readers
        kept.is_fixed |= gone.is_fixed
        kept.flattened |= gone.flattened
        self._root[right] = left

    def all(self) -> Iterator[_Set]:
        """Every set."""
        yield from self._sets.values()

    def _find(self, value: ir.Value) -> ir.Value:
        if value not in self._root:
            self._root[value] = value
            self._sets[value] = _Set()
        while self._root[value] is not value:
            self._root[value] = self._root[self._root[value]]
            value = self._root[value]
        return value


def channel_classes(graph: ir.Graph) -> Iterator[ChannelClass]:
    """Classes that can be scaled, in graph order."""
    sets = _Sets()
    for value in (*graph.inputs, *graph.outputs):
        sets.of(value).is_fixed = True
    for node in graph:
        _add(node, graph, sets)
    for found in sets.all():
        if found.writers and found.readers and not found.is_fixed and _is_even(found):
            yield ChannelClass(tuple(found.writers), tuple(found.readers))


def _add(node: ir.Node, graph: ir.Graph, sets: _Sets) -> None:
    layer = weighted(node)
    if layer is not None and node.op_type != "ConvTranspose" and _is_own(layer):
        sets.of(layer.data).readers.append(layer)
        sets.of(node.outputs[0]).writers.append(layer)
    elif _passes_on(node) or _is_sum(node):
        for value in node.inputs[: 2 if node.op_type == "Add" else 1]:
            if value is not None:
                sets.join(value, node.outputs[0])
        sets.of(node.outputs[0]).flattened |= node.op_type in _FLATTENING
    else:
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                sets.of(value).is_fixed = True
    for value in node.outputs:
        if any(use.node.graph is not graph for use in value.uses()):
            sets.of(value).is_fixed = True  # a branch of an If reads it


def _passes_on(node: ir.Node) -> bool:
    """Case 2, operators of one tensor."""
    if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return False
    if node.op_type in _HOMOGENEOUS:
        return True
    before, after = _dims(node.inputs[0]) if node.inputs else None, _dims(node.outputs[0])
    if node.op_type not in _FLATTENING or before is None or after is None:
        return False
    ones = len(before) > 2 and all(dim == 1 for dim in before[2:])
    return ones and len(after) == 2 and after[1] == before[1] and isinstance(after[1], int)


def _is_sum(node: ir.Node) -> bool:
    """Case 2, Add."""
    if node.op_type != "Add" or node.domain not in ("", "ai.onnx"):
        return False
    one, other = (_dims(value) for value in node.inputs[:2])
    computed = all(is_float_activation(value) for value in node.inputs[:2])
    return computed and one is not None and one == other


def _dims(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def _is_even(found: _Set) -> bool:
    """All layers agree where the channels are, and how many."""
    layers = (*found.writers, *found.readers)
    same_axis = len({layer.is_conv for layer in layers}) == 1 or found.flattened
    counts = {outputs_of(layer) for layer in found.writers}
    counts |= {inputs_of(layer) for layer in found.readers}
    return same_axis and len(counts) == 1


def outputs_of(layer: Weighted) -> int:
    """Output channels of a layer."""
    return _shape(layer)[layer.channel_axis]


def inputs_of(layer: Weighted) -> int:
    """Input channels of a layer."""
    shape = _shape(layer)
    return shape[1] * layer.groups if layer.is_conv else shape[1 - layer.channel_axis]


def _shape(layer: Weighted) -> tuple[int, ...]:
    tensor = layer.weight.const_value
    assert tensor is not None  # the layer has a constant weight
    return tuple(int(dim) for dim in tensor.shape.numpy())


def _is_own(layer: Weighted) -> bool:
    """Weight and bias are constants that nobody else reads, and the weight of a product has two axes."""
    parts = [layer.weight] + ([layer.bias] if layer.bias is not None else [])
    if not layer.is_conv and len(_shape(layer)) != 2:
        return False
    if layer.node.attributes.get_int("transA", 0):
        return False
    return all(
        value.const_value is not None and len(value.uses()) == 1 and value.is_initializer()
        for value in parts
    )
