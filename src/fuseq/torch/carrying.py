"""Take a plan over to another export of the same module, whose names differ."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.errors import PlanError
from fuseq.placement.integer_tensors import BIAS_GROUP
from fuseq.placement.plan import Plan, QuantizedTensor, Use, fingerprint
from fuseq.torch.capture import Capture

_Key = tuple[object, ...]


class Carried:
    """Names of one export of a module in another export of it, found by calls of the living module.

    Two exports of one module make the same calls, but number their nodes otherwise where their dynamic
    axes differ, or where the exporter could leave out a constant of one (a bias of zeros). A node is
    known by its call, operator and how-manieth of them; a tensor by the node and output that makes it,
    or, for a constant, by its own name, else by the first node and input that reads it.

    Attributes:
        nodes: New name by old name, of nodes that both have.
        values: New name by old name, of values that both have.
    """

    def __init__(
        self, old: ir.Model, old_capture: Capture, new: ir.Model, new_capture: Capture
    ) -> None:
        self._new = new
        self.nodes = _matched(_node_keys(old, old_capture), _node_keys(new, new_capture))
        self.values = _matched(_value_keys(old, old_capture), _value_keys(new, new_capture))
        kept = set(old.graph.initializers).intersection(new.graph.initializers)
        self.values.update({name: name for name in kept})

    def plan(self, plan: Plan) -> Plan:
        """Rename a plan's tensors and nodes; a bias that is there no longer is left out.

        Raises:
            PlanError: A planned tensor or reader has no counterpart.
        """
        nodes, values = self.nodes, self.values
        tensors = tuple(
            dataclasses.replace(
                entry,
                tensor=_found(values, entry.tensor),
                uses=tuple(
                    Use(_found(nodes, use.node) if use.node else "", use.index)
                    for use in entry.uses
                ),
                region=nodes.get(entry.region, entry.region),
            )
            for entry in plan.tensors
            if entry.kind != "bias" or entry.tensor in values
        )
        regions = tuple(
            dataclasses.replace(
                region,
                name=nodes.get(region.name, region.name),
                nodes=tuple(nodes.get(each, each) for each in region.nodes),
            )
            for region in plan.regions
        )
        return dataclasses.replace(
            plan, tensors=tensors, regions=regions, fingerprint=fingerprint(self._new)
        )

    def by_value(self, found: Mapping[str, float]) -> dict[str, float]:
        """Numbers by value name, under the new names; values that are gone are left out."""
        return {self.values[name]: each for name, each in found.items() if name in self.values}


def with_all_biases(plan: Plan, model: ir.Model) -> Plan:
    """Plan the biases, too, that quantized convolutions and products have got since, as INT32."""
    nodes = {node.name or "": node for node in model.graph}
    planned = {use for entry in plan.tensors for use in entry.uses}
    added = []
    for entry in plan.tensors:
        for use in entry.uses if entry.kind == "weight" else ():
            node, place = nodes[use.node], Use(use.node, 2)
            bias = node.inputs[2] if len(node.inputs) > 2 else None
            if bias is None or not bias.is_initializer() or place in planned:
                continue
            added.append(
                QuantizedTensor(
                    bias.name or "", "bias", "int32", None if entry.axis is None else 0,
                    f"{BIAS_GROUP}{use.node}", (place,), entry.region,
                    f"bias of {use.node}; scale = input scale x weight scale",
                )
            )  # fmt: skip
    return dataclasses.replace(plan, tensors=(*plan.tensors, *added)) if added else plan


def _found(names: dict[str, str], name: str) -> str:
    if name not in names:
        raise PlanError(
            f"{name!r} of the plan has no counterpart in the graph of the module as it is now; prepare "
            "it again with these weights and dynamic_shapes, so that the plan is made for them."
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
