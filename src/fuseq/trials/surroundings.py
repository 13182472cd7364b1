"""Where a node stands in the graph: its neighbours, and a label that equal surroundings share.

24 equal blocks of an encoder are one problem: what pays in one pays in all. Two nodes get the same
label when operators, attributes, shapes and decisions around them are the same up to
:data:`RADIUS` steps (colour refinement: Weisfeiler and Leman, 1968).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from fuseq.placement.patterns import constant_of
from fuseq.placement.plan import Plan

RADIUS = 3
"""Steps that a label looks around: a kernel that fuses a convolution, its epilogue and an addition
ends within three nodes."""


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """Of every named node of the main graph: what stands before and behind it, and its own word.

    Attributes:
        before: Names of the producers of its inputs, by input number; "" for inputs and constants.
        behind: Names of readers of its outputs with the number of the input that they read.
        words: Operator, attributes and shapes as text.
        order: Position in the graph.
    """

    before: Mapping[str, tuple[str, ...]]
    behind: Mapping[str, tuple[tuple[str, int], ...]]
    words: Mapping[str, str]
    order: Mapping[str, int]


def surroundings_of(graph: ir.Graph) -> Surroundings:
    """Read the main graph once."""
    before, behind, words, order = {}, {}, {}, {}
    for position, node in enumerate(graph):
        name = node.name or ""
        producers = [value.producer() if value is not None else None for value in node.inputs]
        before[name] = tuple((p.name or "") if p is not None else "" for p in producers)
        behind[name] = tuple(
            (use.node.name or "", use.idx) for value in node.outputs for use in value.uses()
        )
        words[name] = _word(node)
        order[name] = position
    return Surroundings(before, behind, words, order)


def zone(around: Surroundings, nodes: Iterable[str], steps: int) -> frozenset[str]:
    """``nodes`` and all nodes within ``steps`` of them."""
    found = {name for name in nodes if name in around.words}
    edge = set(found)
    for _ in range(steps):
        reached = set[str]()
        for name in edge:
            reached.update(other for other in around.before[name] if other)
            reached.update(other for other, _ in around.behind[name])
        edge = reached - found
        found |= edge
    return frozenset(found)


def labels(around: Surroundings, plan: Plan) -> dict[str, str]:
    """A label by node name; equal labels mean equal surroundings and equal decisions there."""
    decided = _decisions(plan)
    current = {
        name: _hashed(word, *sorted(decided.get(name, ()))) for name, word in around.words.items()
    }
    for _ in range(RADIUS):
        current = {
            name: _hashed(
                label,
                *(current[other] if other else "" for other in around.before[name]),
                *sorted(f"{index}{current[other]}" for other, index in around.behind[name]),
            )
            for name, label in current.items()
        }
    return current


def _decisions(plan: Plan) -> dict[str, list[str]]:
    """Words of the plan's decisions by the node that reads the tensor."""
    sizes = {group: len({e.tensor for e in entries}) for group, entries in plan.groups().items()}
    found: dict[str, list[str]] = {}
    for entry in plan.tensors:
        shared = sizes[entry.group] > 1
        for use in entry.uses:
            word = f"{use.index}|{entry.kind}|{entry.format}|{entry.axis}|{shared}"
            found.setdefault(use.node, []).append(word)
    return found


def _word(node: ir.Node) -> str:
    attributes = sorted(
        f"{name}={_attribute_word(attribute)}" for name, attribute in node.attributes.items()
    )
    inputs = [_value_word(value) for value in node.inputs]
    outputs = [f"{_value_word(value)}{value.is_graph_output()}" for value in node.outputs]
    return f"{node.domain}|{node.op_type}|{attributes}|{inputs}|{outputs}"


def _attribute_word(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR and attribute.value is not None:
        return str(tuple(attribute.value.shape.numpy()))
    return str(attribute.value)


def _value_word(value: ir.Value | None) -> str:
    if value is None:
        return "-"
    kind = "c" if constant_of(value) is not None else "v"
    return f"{kind}{value.dtype}{value.shape}"


def _hashed(*words: str) -> str:
    return hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()
