"""Take a plan over to another export of the same module, whose names differ."""

from __future__ import annotations

import dataclasses
from collections import Counter

import onnx_ir as ir

from fuseq.errors import PlanError
from fuseq.placement.plan import Plan, Use, fingerprint
from fuseq.torch.capture import Capture

_Key = tuple[object, ...]


def carry_plan(
    plan: Plan, old: ir.Model, old_capture: Capture, new: ir.Model, new_capture: Capture
) -> Plan:
    """Rename a plan's tensors and nodes after their calls in the living module.

    Two exports of one module with other dynamic axes make the same calls, but number their nodes
    otherwise. A node is known by its call, operator and how-manieth of them; a tensor by the node and
    output that makes it, or, for a constant, by the first node and input that reads it.

    Raises:
        PlanError: A planned tensor or reader has no counterpart.
    """
    nodes = _matched(_node_keys(old, old_capture), _node_keys(new, new_capture))
    values = _matched(_value_keys(old, old_capture), _value_keys(new, new_capture))

    def node(name: str) -> str:
        return _found(nodes, name) if name else name

    tensors = tuple(
        dataclasses.replace(
            entry,
            tensor=_found(values, entry.tensor),
            uses=tuple(Use(node(use.node), use.index) for use in entry.uses),
            region=nodes.get(entry.region, entry.region),
        )
        for entry in plan.tensors
    )
    regions = tuple(
        dataclasses.replace(
            region,
            name=nodes.get(region.name, region.name),
            nodes=tuple(nodes.get(each, each) for each in region.nodes),
        )
        for region in plan.regions
    )
    return dataclasses.replace(plan, tensors=tensors, regions=regions, fingerprint=fingerprint(new))


def _found(names: dict[str, str], name: str) -> str:
    if name not in names:
        raise PlanError(
            f"{name!r} of the plan has no counterpart in the graph with these dynamic axes; give "
            "them to fuseq.torch.prepare as dynamic_shapes, so that the plan is made for them."
        )
    return names[name]


def _matched(old: dict[_Key, str], new: dict[_Key, str]) -> dict[str, str]:
    return {name: new[key] for key, name in old.items() if key in new}


def _node_keys(model: ir.Model, capture: Capture) -> dict[_Key, str]:
    return {key: node.name or "" for node, key in _keyed(model, capture)}


def _keyed(model: ir.Model, capture: Capture) -> list[tuple[ir.Node, _Key]]:
    counts: Counter[_Key] = Counter()
    found = []
    for node in model.graph:
        call = capture.call_of_node(node)
        where = capture.calls[call[0]].key if call is not None else node.name
        key: _Key = (where, node.op_type)
        found.append((node, (*key, counts[key])))
        counts[key] += 1
    return found


def _value_keys(model: ir.Model, capture: Capture) -> dict[_Key, str]:
    keys: dict[_Key, str] = {("input", i): v.name or "" for i, v in enumerate(model.graph.inputs)}
    constants: set[str] = set()
    for node, key in _keyed(model, capture):
        for index, value in enumerate(node.outputs):
            keys[("output", key, index)] = value.name or ""
        for index, read in enumerate(node.inputs):
            if read is None or not read.is_initializer() or (read.name or "") in constants:
                continue
            constants.add(read.name or "")
            keys[("constant", key, index)] = read.name or ""
    return keys
