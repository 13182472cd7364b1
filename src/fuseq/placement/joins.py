"""Pairs for operators without weights that have a kernel of their own in the format.

Such a kernel reads and writes the format, so it needs a pair on every input, and a quantized reader
behind it ("non-weighted layers with INT8 inputs also require INT8 outputs", TensorRT documentation,
"Q/DQ Layer-Placement Recommendations"). Cases of :attr:`FusionRules.unweighted`:

1. Average pooling, also spelled as the mean over all image axes.
2. An Add of two activations that no convolution takes.
An input that somebody else reads in float stays as it is: its Q would run alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from fuseq.placement.patterns import constant_of, copies_values, residual_inputs
from fuseq.placement.plan import QuantizedTensor, Region, Use
from fuseq.targets.fusion import FusionRules


def unweighted_entries(
    graph: ir.Graph, tensors: Sequence[QuantizedTensor], rules: FusionRules
) -> dict[str, list[tuple[ir.Node, QuantizedTensor]]]:
    """Entries to add, by the region whose quantized input they serve, each with its operator."""
    region_of = {use: t.region for t in tensors if t.kind == "activation" for use in t.uses}
    found: dict[str, list[tuple[ir.Node, QuantizedTensor]]] = {}
    for node in reversed(list(graph)):
        inputs = _inputs(node, rules)
        region = _reading_region(node.outputs[0], region_of) if inputs else None
        if region is None or any(_use(node, index) in region_of for index, _ in inputs):
            continue
        if not all(_only_quantized(value, node, region_of) for _, value in inputs):
            continue
        for index, value in inputs:
            why = f"input of {node.op_type} {node.name}, which runs in {rules.activation.name}"
            entry = QuantizedTensor(
                value.name or "", "activation", rules.activation.name, None, value.name or "",
                (_use(node, index),), region, why,
            )  # fmt: skip
            found.setdefault(region, []).append((node, entry))
            region_of[_use(node, index)] = region
    return found


def with_nodes(region: Region, nodes: Sequence[ir.Node]) -> Region:
    """The region, with operators that its plan quantizes besides."""
    names = dict.fromkeys((*region.nodes, *(node.name or "" for node in nodes)))
    return dataclasses.replace(region, nodes=tuple(names))


def _inputs(node: ir.Node, rules: FusionRules) -> list[tuple[int, ir.Value]]:
    if node.op_type not in rules.unweighted:
        return []
    if node.op_type == "Add":  # case 2
        branches = residual_inputs(node)
        return list(enumerate(branches)) if branches is not None else []
    value = node.inputs[0]  # case 1
    if value is None or (node.op_type == "ReduceMean" and not _is_image_mean(node, value)):
        return []
    return [(0, value)]


def _is_image_mean(node: ir.Node, value: ir.Value) -> bool:
    if value.shape is None or len(value.shape) != 4:
        return False
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1:
        tensor = constant_of(node.inputs[1])
        axes = [int(axis) for axis in tensor.numpy().reshape(-1)] if tensor is not None else []
    return sorted(axis % 4 for axis in axes or []) == [2, 3]


def _reading_region(value: ir.Value, region_of: dict[Use, str]) -> str | None:
    """Region of a reader, when every reader reads ``value`` quantized, also through copies."""
    regions: list[str] = []
    if value.is_graph_output() or not value.uses():
        return None
    for use in value.uses():
        own = region_of.get(_use(use.node, use.idx))
        if own is None and copies_values(use.node) and use.idx == 0:
            own = _reading_region(use.node.outputs[0], region_of)
        if own is None:
            return None
        regions.append(own)
    return regions[0]


def _only_quantized(value: ir.Value, node: ir.Node, region_of: dict[Use, str]) -> bool:
    if value.is_graph_output():
        return False
    return all(use.node is node or _use(use.node, use.idx) in region_of for use in value.uses())


def _use(node: ir.Node, index: int) -> Use:
    return Use(node.name or "", index)
