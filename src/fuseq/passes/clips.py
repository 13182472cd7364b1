"""Chains of Relu, Clip, Min and Max with constants become one Relu or Clip."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import is_op, only_reader, scalar, split_constant
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant

_Bounds = tuple[float, float, ir.Value]
"""(lower, upper, the computed operand): ``min(max(operand, lower), upper)``."""


def merge_clips(model: ir.Model) -> list[str]:
    """Rewrite ``Min(Max(x, a), b)``, ``Min(Relu(x), 6)``, ``Clip(Relu(x), ...)`` and longer chains.

    Two links ``[a, b]`` then ``[c, d]`` are one, ``[clip(a, c, d), clip(b, c, d)]``. A single Min,
    Max or Clip stays, except that ``Max(x, 0)`` and ``Clip(x, 0)`` become Relu.

    onnxscript has rules for this that name their constants after the input, so that two chains
    on one input overwrite each other's bounds; hence a pass of our own.
    """
    taken = value_names(model)
    for node in list(model.graph):
        found = _bounds(node)
        if found is None:
            continue
        lower, upper, source = found
        count = 1
        inner = _inner(source)
        while inner is not None:
            lower, upper = (min(max(bound, lower), upper) for bound in inner[:2])
            source, count = inner[2], count + 1
            inner = _inner(source)
        becomes_relu = (lower, upper) == (0.0, float("inf")) and node.op_type != "Relu"
        if (count > 1 or becomes_relu) and np.isfinite([lower, upper]).any():
            _rewrite(model.graph, node, (lower, upper, source), taken)
    return []


def _inner(source: ir.Value) -> _Bounds | None:
    node = source.producer()
    if node is None or only_reader(source) is None:
        return None
    return _bounds(node)


def _bounds(node: ir.Node) -> _Bounds | None:
    """Read one link; None for anything else, for bounds that are not scalar, for integers."""
    if not is_op(node, "Relu", "Clip", "Min", "Max") or node.inputs[0] is None:
        return None
    dtype = node.outputs[0].dtype
    if dtype is None or not dtype.is_floating_point():
        return None
    if node.op_type == "Relu":
        return 0.0, float("inf"), node.inputs[0]
    if node.op_type == "Clip":
        return _clip_bounds(node, node.inputs[0])
    parts = split_constant(node)
    bound = scalar(parts[1]) if parts is not None else None
    if parts is None or bound is None or (parts[1].shape is not None and len(parts[1].shape)):
        return None
    if node.op_type == "Min":
        return float("-inf"), bound, parts[0]
    return bound, float("inf"), parts[0]


def _clip_bounds(node: ir.Node, source: ir.Value) -> _Bounds | None:
    bounds = []
    for index, default in ((1, float("-inf")), (2, float("inf"))):
        value = node.inputs[index] if len(node.inputs) > index else None
        bound = default if value is None else scalar(value)
        if bound is None:
            return None
        bounds.append(bound)
    return bounds[0], bounds[1], source


def _rewrite(graph: ir.Graph, node: ir.Node, bounds: _Bounds, taken: set[str]) -> None:
    lower, upper, source = bounds
    dtype = (node.outputs[0].dtype or ir.DataType.FLOAT).numpy()
    if (lower, upper) == (0.0, float("inf")):
        fused = ir.node("Relu", [source], name=node.name)
    else:
        limits: list[ir.Value | None] = [
            new_constant(graph, name, np.asarray(bound, dtype), taken)
            if np.isfinite(bound)
            else None
            for name, bound in (("lower", lower), ("upper", upper))
        ]
        fused = ir.node("Clip", [source, *limits], name=node.name)
    fused.metadata_props.update(node.metadata_props)
    old = node.outputs[0]
    fused.outputs[0].type, fused.outputs[0].shape = old.type, old.shape
    graph.insert_before(node, fused)
    old.replace_all_uses_with(fused.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)
    fused.outputs[0].name, old.name = old.name, None
