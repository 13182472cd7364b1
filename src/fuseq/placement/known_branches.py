"""Of two convolutions that an Add could fuse into, fuse the one whose partner has a scale already."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from fuseq.placement.patterns import residual_inputs
from fuseq.placement.plan import Plan, QuantizedTensor, Region, Use


def prefer_known_branches(plan: Plan, graph: ir.Graph, known: Collection[str]) -> Plan:
    """Move the pair of a residual Add to its other branch, where only that one has a scale.

    An Add of two convolutions (the shortcut of a down-sampling block is one) fuses into either of
    them, and the other branch gets the pair: both placements compile to the same kernels. The
    planner takes one; a quantized file may have taken the other, and has a scale only for it.

    Args:
        plan: What the planner made.
        graph: The graph it was made for.
        known: Tensors that have a scale.
    """
    ends = {region.nodes[-1]: region for region in plan.regions if region.quantized}
    for node in graph:
        branches = residual_inputs(node)
        if branches is None:
            continue
        entry = _identity_entry(plan, node)
        if entry is None or entry.tensor in known:
            continue
        index = entry.uses[0].index
        fused, other = branches[1 - index], branches[index]
        owner = _region_ending_in(other, ends)
        if owner is None or (fused.name or "") not in known:
            continue
        moved = dataclasses.replace(
            entry,
            tensor=fused.name or "",
            group=fused.name or "",
            uses=(Use(node.name or "", 1 - index),),
            region=owner.name,
            reason=f"the other branch of the residual {node.name}: the Add fuses into {owner.name}",
        )
        plan = _swapped(plan, entry, moved, node.name or "")
    return plan


def _identity_entry(plan: Plan, add: ir.Node) -> QuantizedTensor | None:
    """The only pair on an input of ``add``."""
    found = [
        entry
        for entry in plan.tensors
        if entry.kind == "activation" and any(use.node == add.name for use in entry.uses)
    ]
    return found[0] if len(found) == 1 and len(found[0].uses) == 1 else None


def _region_ending_in(value: ir.Value, ends: dict[str, Region]) -> Region | None:
    producer = value.producer()
    region = ends.get(producer.name or "") if producer is not None else None
    if region is None or value.is_graph_output() or len(value.uses()) != 1:
        return None
    return region if region.pattern in ("conv block", "grouped convolution") else None


def _swapped(plan: Plan, old: QuantizedTensor, new: QuantizedTensor, add: str) -> Plan:
    def regions(region: Region) -> Region:
        if region.name == old.region:
            return dataclasses.replace(region, nodes=tuple(n for n in region.nodes if n != add))
        if region.name == new.region:
            return dataclasses.replace(region, nodes=(*region.nodes, add))
        return region

    return dataclasses.replace(
        plan,
        tensors=tuple(new if entry is old else entry for entry in plan.tensors),
        regions=tuple(regions(region) for region in plan.regions),
    )
