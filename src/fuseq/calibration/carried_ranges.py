"""Carry the ranges of some tensors to others that hold the same values, or values bounded by them.

What carries, and why (operators as in the ONNX operator reference):

| operator | from | to | because |
| --- | --- | --- | --- |
| Reshape, Transpose, Flatten, Squeeze, Unsqueeze, Identity, DepthToSpace, SpaceToDepth, Expand, Tile | either side | the other | the same values |
| Split | all its outputs | its input | every value is in one of them |
| Concat | its output | an input | its values are among the output's |
| Mul by one constant number | its output | its input | divided by the number |
| Relu, whose input has no other reader | its output | its input | what is cut off is 0 behind it |
| MaxPool of a tensor without negatives, windows without gaps | its output | its input | the largest value is in a window |
| MaxPool, Slice, Split, Gather, Resize (nearest), Pad with 0 | its input | its output | values of the input, or 0 |
| Concat | all inputs | its output | their union |
| Relu, Clip, LeakyRelu, Gelu, HardSwish | its input | its output | they only shrink magnitudes |
| Sigmoid, HardSigmoid, Softmax, Tanh | | its output | known by definition: 1 |
| Add, Sub, Mul | both inputs | its output | interval arithmetic, a bound |
| Add of a residual | its output | a branch | an estimate: see :func:`find_range` |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import onnx_ir as ir

from fuseq.calibration.ranges import EMPTY, Range
from fuseq.passes.matching import constant, float_attribute, is_op, scalar
from fuseq.passes.non_negative import never_negative
from fuseq.placement.patterns import residual_inputs

Certainty = Literal["same", "bound", "estimate"]
_ORDER: tuple[Certainty, ...] = ("same", "bound", "estimate")

_SAME_VALUES = frozenset(
    {
        "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "DepthToSpace",
        "SpaceToDepth", "Expand", "Tile",
    }
)  # fmt: skip
_PICKS = frozenset({"MaxPool", "Slice", "Split", "Gather", "GlobalMaxPool", "ReduceMax"})
_BY_DEFINITION: Mapping[str, Range] = {
    "Sigmoid": Range(0.0, 1.0),
    "HardSigmoid": Range(0.0, 1.0),
    "Softmax": Range(0.0, 1.0),
    "Tanh": Range(-1.0, 1.0),
}
_SHRINKS: Mapping[str, float] = {"Gelu": -0.17, "HardSwish": -0.375, "Relu": 0.0}
"""Smallest value of activations that are ``x * gate`` with a gate of 0 to 1 (Gelu -0.16997 at
x = -0.7518, HardSwish -3/8 at x = -1.5)."""
_CARRYING = _SAME_VALUES | _PICKS | set(_SHRINKS) | {"Clip", "LeakyRelu", "Pad", "Resize"}
_LARGEST_CONSTANT = 1 << 22
_LONGEST_WAY = 40
_MOST_VISITED = 400
"""Steps of one way, and values of one walk: what is farther away says little."""


@dataclasses.dataclass(frozen=True)
class Carried:
    """The range of a tensor and how it is known.

    Attributes:
        range: The range.
        certainty: ``same``: the values are those of a tensor with a scale (or fewer of them);
            ``bound``: the values cannot be larger; ``estimate``: they usually are not.
        how: In words, "" where the tensor's own scale is in the file.
    """

    range: Range
    certainty: Certainty = "same"
    how: str = ""


_Look = Callable[[ir.Value], "Carried | None"]


def find_range(value: ir.Value, known: Mapping[str, Carried]) -> Carried | None:
    """The range of ``value``: its own, else of the least uncertain way to a tensor that has one.

    An estimate is made where nothing else is known: a branch of a residual Add is taken to stay
    within the range of the sum (or of the Relu behind it), which holds unless the branches cancel
    each other.

    Args:
        value: A value of a float graph.
        known: Ranges by name of value.
    """
    search = _Search(known)
    found = search.look(value)
    return found if found is not None else _residual_estimate(value, search.look)


@dataclasses.dataclass
class _Search:
    """One walk; every value is visited once."""

    known: Mapping[str, Carried]
    visited: dict[ir.Value, Carried | None] = dataclasses.field(default_factory=dict)
    depth: int = 0

    def look(self, value: ir.Value) -> Carried | None:
        """The range of ``value``; None also while the walk is on its way through it."""
        own = self.known.get(value.name or "")
        if own is not None:
            return own
        if value in self.visited:
            return self.visited[value]
        if self.depth > _LONGEST_WAY or len(self.visited) > _MOST_VISITED:
            return None
        self.visited[value] = None
        self.depth += 1
        found = _best([_from_readers(value, self.look), _from_producer(value, self.look)])
        self.depth -= 1
        self.visited[value] = found
        return found


def _best(candidates: list[Carried | None]) -> Carried | None:
    given = [each for each in candidates if each is not None]
    return min(given, key=lambda each: _ORDER.index(each.certainty)) if given else None


def _from_readers(value: ir.Value, look: _Look) -> Carried | None:
    for use in value.uses():
        node = use.node
        if node.domain != "" or not node.outputs:
            continue
        out = node.outputs[0]
        if node.op_type in _SAME_VALUES and use.idx == 0 and node.op_type not in ("Expand", "Tile"):
            found = look(out)
        elif is_op(node, "Split") and use.idx == 0:
            found = _union([look(each) for each in node.outputs], node)
        elif is_op(node, "Concat"):
            found = look(out)
        elif is_op(node, "Mul"):
            found = _divided(look(out), node, use.idx)
        elif _only_relu_reads(value, node) or _keeps_maximum(value, node):
            found = look(out)
        else:
            continue
        if found is not None:
            return _via(found, node)
    return None


def _only_relu_reads(value: ir.Value, node: ir.Node) -> bool:
    return is_op(node, "Relu") and len(value.uses()) == 1 and not value.is_graph_output()


def _keeps_maximum(value: ir.Value, node: ir.Node) -> bool:
    """A MaxPool whose windows leave no gap; the last rows may be cut off where they do not fit."""
    if not is_op(node, "MaxPool") or not never_negative(value):
        return False
    kernel = node.attributes["kernel_shape"].as_ints()
    strides = node.attributes.get("strides")
    steps = strides.as_ints() if strides is not None else [1] * len(kernel)
    return all(step <= size for step, size in zip(steps, kernel, strict=True))


def _from_producer(value: ir.Value, look: _Look) -> Carried | None:
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type in _BY_DEFINITION:
        return Carried(_BY_DEFINITION[node.op_type], "same", f"{node.op_type} gives no more than 1")
    if is_op(node, "Concat"):
        return _via(_union([look(v) if v is not None else None for v in node.inputs], node), node)
    if is_op(node, "Add", "Sub", "Mul") and len(node.inputs) == 2:
        return _arithmetic(node, look)
    first = node.inputs[0] if node.inputs else None
    if first is None or node.op_type not in _CARRYING:
        return None
    found = look(first)
    span = _range_behind(node, found.range) if found is not None else None
    if found is None or span is None:
        return None
    return _via(dataclasses.replace(found, range=span), node)


def _range_behind(node: ir.Node, span: Range) -> Range | None:
    """Range of the output of an operator that gives values of its input, or smaller ones."""
    if node.op_type in _SHRINKS:
        return span.within(_SHRINKS[node.op_type], np.inf)
    if node.op_type == "Clip":
        low, high = (
            scalar(v) if v is not None else None for v in [*node.inputs[1:], None, None][:2]
        )
        return span.within(-np.inf if low is None else low, np.inf if high is None else high)
    if node.op_type == "LeakyRelu":
        alpha = float_attribute(node, "alpha", 0.01)
        return span.within(alpha * span.minimum, np.inf) if 0 <= alpha <= 1 else None
    if node.op_type == "Pad":
        return span.union(Range(0.0, 0.0)) if _pads_zero(node) else None
    if node.op_type == "Resize":
        return span if node.attributes.get_string("mode", "nearest") == "nearest" else None
    return span


def _via(found: Carried | None, node: ir.Node) -> Carried | None:
    if found is None:
        return None
    step = f"{node.op_type} {node.name}"
    how = f"{found.how}, {step}" if found.how else f"through {step}"
    return dataclasses.replace(found, how=how)


def _union(parts: list[Carried | None], node: ir.Node) -> Carried | None:
    span, certainty = EMPTY, 0
    for part in parts:
        if part is None:
            return None
        span = span.union(part.range)
        certainty = max(certainty, _ORDER.index(part.certainty))
    same = len({(part.range.minimum, part.range.maximum) for part in parts if part}) == 1
    how = "" if same else f"the largest of {len(parts)} parts of {node.op_type} {node.name}"
    return Carried(span, _ORDER[certainty], how)


def _divided(found: Carried | None, node: ir.Node, index: int) -> Carried | None:
    """Range before a Mul by one number."""
    factor = scalar(node.inputs[1 - index]) if len(node.inputs) == 2 else None
    if found is None or not factor:
        return None
    ends = (found.range.minimum / factor, found.range.maximum / factor)
    return dataclasses.replace(found, range=Range(min(ends), max(ends)))


def _arithmetic(node: ir.Node, look: _Look) -> Carried | None:
    """Interval arithmetic (Moore, Interval Analysis, 1966, chapter 2)."""
    left, right = (_operand(value, look) for value in node.inputs)
    if left is None or right is None or left.certainty != "same" or right.certainty != "same":
        return None  # a bound of bounds says too little
    a, b = left.range, right.range
    if node.op_type == "Mul":
        ends = [x * y for x in (a.minimum, a.maximum) for y in (b.minimum, b.maximum)]
        span = Range(min(ends), max(ends))
    elif node.op_type == "Add":
        span = Range(a.minimum + b.minimum, a.maximum + b.maximum)
    else:
        span = Range(a.minimum - b.maximum, a.maximum - b.minimum)
    how = f"no more than {node.op_type} {node.name} can make of its inputs"
    return Carried(span, "bound", how)


def _operand(value: ir.Value | None, look: _Look) -> Carried | None:
    tensor = constant(value)
    if value is None or tensor is None:
        return look(value) if value is not None else None
    if tensor.size > _LARGEST_CONSTANT or not tensor.size:
        return None
    array = tensor.numpy().astype(np.float64)
    return Carried(Range(float(array.min()), float(array.max())))


def _residual_estimate(value: ir.Value, look: _Look) -> Carried | None:
    for use in value.uses():
        if residual_inputs(use.node) is None:
            continue
        total = use.node.outputs[0]
        behind = [each.node for each in total.uses()]
        sums = [total, *(n.outputs[0] for n in behind if is_op(n, "Relu", "Clip"))]
        found = next((each for each in map(look, sums) if each is not None), None)
        if found is not None:
            amax = found.range.amax
            how = f"taken to stay within the sum that {use.node.op_type} {use.node.name} makes"
            return Carried(Range(-amax, amax), "estimate", how)
    return None


def _pads_zero(node: ir.Node) -> bool:
    if node.attributes.get_string("mode", "constant") != "constant":
        return True
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    return fill is None or scalar(fill) == 0
