"""Which tensors of two graphs hold the same thing: by name, else by where they come from.

1. A name that both graphs use for a value. Quantizing keeps the names of the values that it keeps.
2. Else provenance: two values are the same where the same operator makes them, in the same place
   among its outputs, from values that are the same. Q/DQ pairs, Cast and Identity between are looked
   through, and a constant stands for its shape. Where several look alike (the Q, K and V projections
   of one tensor) and both graphs have as many, they are taken in graph order.
3. Else the module: the one value that leaves the nodes of ``encoder.layers.3.fc1`` in both graphs. So
   files that two exporters made of one module are compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Literal

import onnx_ir as ir

from fuseq.passes.matching import constant
from fuseq.passes.quantizers import is_dequantize, is_quantize
from fuseq.report.graph_rows import modules_by_node

_SAME = frozenset({"Cast", "Identity"})


@dataclasses.dataclass(frozen=True)
class Match:
    """A value of the reference and what stands for it in the other graph."""

    name: str
    other: str
    how: Literal["name", "provenance"]


def match_values(
    reference: ir.Model, other: ir.Model, inputs: Mapping[str, str]
) -> tuple[Match, ...]:
    """Values of both main graphs, in the reference's order.

    Args:
        reference: Read only.
        other: Read only.
        inputs: Name of the other model's input by that of the reference's.
    """
    tokens = {name: f"input {number}" for number, name in enumerate(inputs)}
    others = {name: f"input {number}" for number, name in enumerate(inputs.values())}
    names = _names(reference) & _names(other)
    left = _Tokens(tokens, names).of(reference)
    right = _Tokens(others, names).of(other)
    by_token = _by_token(right)
    alike = _by_token(left)
    found = []
    for name, token in left.items():
        if name in names:
            found.append(Match(name, name, "name"))
            continue
        twins, candidates = alike[token], by_token.get(token, [])
        if len(twins) == len(candidates):
            found.append(Match(name, candidates[twins.index(name)], "provenance"))
    return _in_order([*found, *_by_module(reference, other, found)], reference)


def leaving_modules(model: ir.Model, floats: Set[str]) -> dict[str, str]:
    """The one value of ``floats`` that leaves each module's nodes, by module path.

    Where nested modules end with the same value, the outermost stands for it.
    """
    modules = modules_by_node(model)
    outputs = set(model.graph.outputs)
    found: dict[str, set[str]] = {}
    for node in model.graph:
        path = modules.get(node.name or "", "")
        parts = path.split(".") if path else []
        for value in node.outputs:
            if value.name is None or value.name not in floats:
                continue
            readers = [modules.get(reader.name or "", "") for reader in value.consumers()]
            for depth in range(1, len(parts) + 1):
                around = ".".join(parts[:depth])
                if value in outputs or any(not _is_in(reader, around) for reader in readers):
                    found.setdefault(around, set()).add(value.name)
    single = {path: next(iter(names)) for path, names in found.items() if len(names) == 1}
    outermost: dict[str, str] = {}
    for path in sorted(single, key=lambda path: path.count(".")):
        outermost.setdefault(single[path], path)
    return {path: value for value, path in outermost.items()}


def _by_module(reference: ir.Model, other: ir.Model, found: list[Match]) -> list[Match]:
    """Case 3, for values that have no twin yet."""
    here = _made(reference) - {match.name for match in found}
    there = _made(other) - {match.other for match in found}
    twins = leaving_modules(other, there)
    return [
        Match(name, twins[path], "provenance")
        for path, name in leaving_modules(reference, here).items()
        if path in twins
    ]


def _in_order(matches: list[Match], reference: ir.Model) -> tuple[Match, ...]:
    order = {value.name: i for i, node in enumerate(reference.graph) for value in node.outputs}
    return tuple(sorted(matches, key=lambda match: order[match.name]))


def _is_in(path: str, module: str) -> bool:
    return path == module or path.startswith(module + ".")


@dataclasses.dataclass
class _Tokens:
    """What stands for each value: equal tokens, same thing."""

    inputs: dict[str, str]
    shared: frozenset[str]
    seen: dict[str, str] = dataclasses.field(default_factory=dict)

    def of(self, model: ir.Model) -> dict[str, str]:
        """Token by name of every value that a node makes and that is no mere copy."""
        self.seen.update(self.inputs)
        found: dict[str, str] = {}
        for node in model.graph:
            for place, value in enumerate(node.outputs):
                name = value.name or ""
                token = self._token(node, place)
                if name in self.shared:
                    token = f"name {name}"
                self.seen[name] = token
                if name in self.shared or not _is_copy(node):
                    found[name] = token
        return found

    def _token(self, node: ir.Node, place: int) -> str:
        if _is_copy(node):
            return self._of_value(node.inputs[0])
        read = ",".join(self._of_value(value) for value in node.inputs)
        text = f"{node.domain}.{node.op_type}:{place}({read})"
        return text if len(text) < 200 else f"{node.op_type}:{place}#{hash(text):x}"

    def _of_value(self, value: ir.Value | None) -> str:
        if value is None:
            return "-"
        tensor = constant(value)
        if tensor is not None:
            return f"constant {tuple(tensor.shape.numpy())}"
        return self.seen.get(value.name or "", f"? {value.name}")


def _is_copy(node: ir.Node) -> bool:
    """It hands its first input on, rounded at most."""
    return is_quantize(node) or is_dequantize(node) or (node.domain == "" and node.op_type in _SAME)


def _names(model: ir.Model) -> frozenset[str]:
    return frozenset(value.name for node in model.graph for value in node.outputs if value.name)


def _made(model: ir.Model) -> frozenset[str]:
    """Values that are more than a rounded copy of another."""
    copies = {v.name for node in model.graph if _is_copy(node) for v in node.outputs if v.name}
    return _names(model) - copies


def _by_token(tokens: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, token in tokens.items():
        found.setdefault(token, []).append(name)
    return found
