"""Gives one scale group to tensors that are the same values before and after a pass-through node.

MaxPool, Reshape, Transpose, Concat, nearest Resize and their like copy values: two scales around
them would requantize for nothing (ONNX Runtime and TensorRT both document one scale there).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from fuseq.placement.patterns import copies_values
from fuseq.placement.plan import QuantizedTensor


def share_scales(
    graph: ir.Graph, tensors: Sequence[QuantizedTensor]
) -> tuple[QuantizedTensor, ...]:
    """Return the tensors with groups joined across pass-through nodes; a group is named after its
    first tensor in graph order. Fixed ranges (``known_amax``) keep their own group."""
    planned = {
        entry.tensor for entry in tensors if entry.kind == "activation" and not entry.known_amax
    }
    parent = {name: name for name in planned}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for node in graph:
        for value in node.outputs:
            if (value.name or "") in planned:
                for source in _planned_sources(value, planned):
                    parent[root(value.name or "")] = root(source)
    return tuple(
        dataclasses.replace(entry, group=root(entry.tensor))
        if entry.tensor in planned and entry.kind == "activation" and entry.group == entry.tensor
        else entry
        for entry in tensors
    )


def _planned_sources(value: ir.Value, planned: set[str]) -> list[str]:
    """Nearest planned tensors whose values ``value`` holds, through pass-through nodes."""
    found: list[str] = []
    stack, seen = [value], {value}
    while stack:
        producer = stack.pop().producer()
        if producer is None or not copies_values(producer):
            continue
        for source in _copied_inputs(producer):
            if (source.name or "") in planned:
                found.append(source.name or "")
            elif source not in seen:
                seen.add(source)
                stack.append(source)
    return found


def _copied_inputs(node: ir.Node) -> list[ir.Value]:
    """Inputs whose values come out: all of a Concat, the first of any other."""
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return [value for value in inputs if value is not None]
