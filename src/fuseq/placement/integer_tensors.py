"""The plan entries of chosen integer units: activations with shared scales, weights, INT32 biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from fuseq.placement.integer_units import Unit
from fuseq.placement.plan import Limits, QuantizedTensor, Use
from fuseq.targets.fusion import FusionRules

BIAS_GROUP = "bias:"
"""Scale group of a bias: this and the name of the node whose input and weight scales it multiplies."""

NUMBER_GROUP = "number:"
"""Scale group of a constant number of an Add or Mul: this and the name of the node."""


def tensor_entries(
    graph: ir.Graph, running: Sequence[Unit], rules: FusionRules
) -> tuple[QuantizedTensor, ...]:
    """Entries of ``running``, the units that run on integers, in graph order."""
    groups = _groups(running)
    limits = _limits(running)
    slots = {use for unit in running for use in unit.inputs}
    axes: dict[str, int | None] = {}
    entries: list[QuantizedTensor] = []

    def activation(value: ir.Value, uses: tuple[Use, ...], unit: Unit, why: str) -> QuantizedTensor:
        root = groups.get(value, value)
        return QuantizedTensor(
            value.name or "", "activation", rules.activation.name, None, root.name or "", uses,
            unit.name, why, limits=limits.get(root),
        )  # fmt: skip

    for unit in running:
        for value, uses in _read(unit).items():
            entries.append(activation(value, uses, unit, f"input of {unit.name}"))
        entries.extend(_constants(unit, rules, axes))
        for value in unit.outputs:
            uses = all_uses(graph, value)
            if not unit.writes_float:
                why = f"output of {unit.name}, quantized for all its readers"
                entries.append(activation(value, uses, unit, why))
            elif uses and slots.issuperset(uses):
                why = f"output of {unit.name}, which only integer kernels read"
                entries.append(activation(value, uses, unit, why))
    return tuple(entries)


def all_uses(graph: ir.Graph, value: ir.Value) -> tuple[Use, ...]:
    """Every reader of a value: inputs of nodes, then the model's outputs (node "")."""
    uses = [Use(use.node.name or "", use.idx) for use in value.uses()]
    uses += [Use("", index) for index, output in enumerate(graph.outputs) if output is value]
    return tuple(uses)


def _read(unit: Unit) -> dict[ir.Value, tuple[Use, ...]]:
    found: dict[ir.Value, tuple[Use, ...]] = {}
    for use in unit.inputs:
        value = unit.core.inputs[use.index]
        if value is not None:
            found[value] = (*found.get(value, ()), use)
    return found


def _constants(
    unit: Unit, rules: FusionRules, axes: dict[str, int | None]
) -> list[QuantizedTensor]:
    """The weight, and the bias with the weight's granularity; ``axes`` keeps one axis a group.

    An operator without weights has at most a number.
    """
    match = unit.weighted
    if unit.number is not None:
        value = unit.core.inputs[unit.number.index]
        name = value.name if value is not None else None
        group = f"{NUMBER_GROUP}{unit.name}"
        return [
            QuantizedTensor(
                name or "", "weight", rules.activation.name, None, group, (unit.number,),
                unit.name, f"number that {unit.name} takes; it is stored exactly",
            )
        ]  # fmt: skip
    if match is None:
        return []
    granularity = rules.conv_weights if match.is_conv else rules.linear_weights
    axis = match.channel_axis if granularity == "channel" else None
    name = match.weight.name or ""
    group = name if axes.setdefault(name, axis) == axis else f"{name}/axis {axis}"
    scales = "one scale a channel" if axis is not None else "one scale"
    entries = [
        QuantizedTensor(
            name, "weight", rules.weight.name, axis, group, (Use(unit.name, 1),), unit.name,
            f"weight of {unit.name}; {scales}",
        )
    ]  # fmt: skip
    bias = _bias_value(unit)
    if rules.int32_bias and unit.bias is not None and bias is not None:
        entries.append(
            QuantizedTensor(
                bias.name or "", "bias", "int32", None if axis is None else 0,
                f"{BIAS_GROUP}{unit.name}", (unit.bias,), unit.name,
                f"bias of {unit.name}; scale = input scale x weight scale",
            )
        )  # fmt: skip
    return entries


def _bias_value(unit: Unit) -> ir.Value | None:
    for node in unit.nodes:
        if unit.bias is not None and node.name == unit.bias.node:
            return node.inputs[unit.bias.index]
    return None


def _groups(running: Sequence[Unit]) -> dict[ir.Value, ir.Value]:
    """By value written by copying: the tensor at the beginning of the copies."""
    roots: dict[ir.Value, ir.Value] = {}
    for unit in running:
        source = unit.core.inputs[0]
        if unit.same_scale and source is not None:
            for value in unit.outputs:
                roots[value] = roots.get(source, source)
    return roots


def _limits(running: Sequence[Unit]) -> Mapping[ir.Value, Limits]:
    """Bounds of what a chosen unit writes; copies have those of the tensor they copy."""
    return {
        value: unit.limits
        for unit in running
        if unit.limits is not None and not unit.same_scale
        for value in unit.outputs
    }
