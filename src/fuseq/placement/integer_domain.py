"""Plans for targets whose kernels are low-precision only from quantized input to quantized output.

Such kernels form islands: inside an island every tensor is quantized and every reader reads it
quantized; conversions stand at the ends only. An operator without an integer kernel splits islands.
Which islands pay is decided by :mod:`fuseq.placement.integer_choice`; under ``full`` every operator
with weights runs on integers and the rest follows from that.

1. A unit that runs on integers quantizes what it reads, its weight, its bias (INT32, group
   ``bias:<node>``) and what it writes, for **all** readers: one float reader would keep its kernel
   in float.
2. A unit that can write float (Gemm, MatMul) writes integers only where all readers are integer.
3. Units that copy values have one scale group on both sides, named after the tensor they copy from.
4. Each entry belongs to the region that asks for it, so that regions can be dropped one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from fuseq.placement.choices import (
    PlanOptions,
    blocked_by_user,
    unmatched_globs,
    user_refusal,
)
from fuseq.placement.integer_choice import choose_units, estimate, why_float
from fuseq.placement.integer_costs import batch_symbols, tensors_of, unit_cost
from fuseq.placement.integer_tensors import tensor_entries
from fuseq.placement.integer_units import Unit, units_of
from fuseq.placement.patterns import is_float_activation, residual_inputs
from fuseq.placement.plan import Plan, Region, fingerprint
from fuseq.placement.planner import pattern_of, refusal_of
from fuseq.placement.spectra import spectra, spectrum_reason
from fuseq.source_lines import module_path
from fuseq.targets.fusion import FusionRules, OperatorCosts

_NO_KERNEL = "float: {op} has no {format} kernel on this target; it ends the integers around it"


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which units run on integers, why the others do not (by unit number), and notes."""

    chosen: frozenset[int]
    reasons: Mapping[int, str]
    notes: tuple[str, ...] = ()


def plan_integers(
    model: ir.Model,
    rules: FusionRules,
    target: str,
    user_format: str,
    precision: str,
    options: PlanOptions,
) -> Plan:
    """Plan the islands of integer operators that pay.

    Args:
        model: Canonical float model, prepared for the target.
        rules: What the target fuses; ``pairs_on_outputs`` is true.
        target: Name of the target, written into the plan.
        user_format: ``int8``.
        precision: Type of what stays float.
        options: The user's choices.
    """
    graph = model.graph
    units = _with_refusals(graph, units_of(graph, rules), rules, options)
    allowed = [unit for unit in units if not unit.refusal]
    if rules.costs is None:
        choice = Choice(frozenset(range(len(allowed))), {})
    else:
        choice = _cheapest(graph, allowed, rules.costs, options.policy == "full")
    running = [unit for number, unit in enumerate(allowed) if number in choice.chosen]
    reasons = {allowed[number].name: why for number, why in choice.reasons.items()}
    matches = [unit.weighted for unit in units if unit.weighted is not None]
    return Plan(
        target=target,
        format=user_format,
        precision=precision,
        policy=options.policy,
        fingerprint=fingerprint(model),
        tensors=tensor_entries(graph, running, rules),
        regions=_regions(graph, units, running, reasons, rules),
        notes=(*unmatched_globs(matches, options), *choice.notes),
    )


def unit_pattern(unit: Unit) -> str:
    """Name of the unit's pattern, as the plan and the tables print it."""
    if unit.weighted is not None:
        return pattern_of(unit.weighted)
    if residual_inputs(unit.core) is not None:
        return "residual join"
    return unit.core.op_type


def _with_refusals(
    graph: ir.Graph, units: Sequence[Unit], rules: FusionRules, options: PlanOptions
) -> list[Unit]:
    """Add what the user and the target refuse."""
    matches = [unit.weighted for unit in units if unit.weighted is not None]
    blocked = {**spectra(matches), **blocked_by_user(graph, matches, options)}
    result = []
    for unit in units:
        names = (unit.name, module_path(unit.core), unit.core.op_type)
        refusal = unit.refusal
        if unit.weighted is not None:
            refusal = blocked.get(unit.name) or refusal or refusal_of(unit.weighted, rules)
        else:
            blocked_here = options.float_because.get(unit.name, "")
            chosen = blocked_here or user_refusal(names, options)
            refusal = chosen or spectrum_reason(unit.core) or refusal
        result.append(dataclasses.replace(unit, refusal=refusal))
    return result


def _cheapest(
    graph: ir.Graph, allowed: Sequence[Unit], operator_costs: OperatorCosts, is_full: bool
) -> Choice:
    """The cheapest split by the target's costs; units of unknown shape stay float.

    ``is_full`` forces the operators with weights to run on integers.
    """
    known_by = "measured" if operator_costs.measured else "estimated"
    batch = batch_symbols(graph)
    found = [unit_cost(unit, operator_costs, batch) for unit in allowed]
    numbers = [number for number, cost in enumerate(found) if cost is not None]
    costs = [cost for cost in found if cost is not None]
    known = [allowed[number] for number in numbers]
    tensors = tensors_of(graph, known, operator_costs, batch)
    forced = {number for number, unit in enumerate(known) if is_full and unit.weighted}
    chosen = choose_units(costs, tensors, forced)
    reasons = {
        numbers[number]: why_float(number, costs, tensors, chosen, known_by)
        for number in range(len(known))
        if number not in chosen
    }
    reasons |= {
        number: "the shape of its output is unknown, so its cost is too"
        for number, cost in enumerate(found)
        if cost is None
    }
    total = estimate(costs, tensors, chosen)
    note = (
        f"{len(chosen)} of {len(allowed)} operators with integer kernels run on integers: by "
        f"{known_by} kernel times {total.planned_ns / 1e6:.2f} ms against "
        f"{total.float_ns / 1e6:.2f} ms in float for those operators, one sample."
    )
    whole = frozenset(numbers[number] for number in chosen)
    return Choice(whole, reasons, () if is_full else (note,))


def _regions(
    graph: ir.Graph,
    units: Sequence[Unit],
    running: Sequence[Unit],
    reasons: Mapping[str, str],
    rules: FusionRules,
) -> tuple[Region, ...]:
    """One region a unit, and one for each float operator that stands beside integers.

    Operators that only copy values are left out where everything around them is float.
    """
    by_core = {unit.core: unit for unit in units}
    inside = {unit.name for unit in running}
    absorbed = {node for unit in running for node in unit.nodes}
    quantized = _quantized_values(running)
    regions = []
    for node in graph:
        unit = by_core.get(node)
        if unit is not None and _only_copies(unit) and not _touches(node, quantized):
            continue
        if unit is not None:
            regions.append(_unit_region(unit, unit.name in inside, reasons, rules))
        elif node not in absorbed and _splits(node, quantized):
            why = _NO_KERNEL.format(op=node.op_type, format=rules.activation.name)
            regions.append(Region(node.name or "", node.op_type, (node.name or "",), False, why))
    return tuple(regions)


def _unit_region(
    unit: Unit, is_integer: bool, reasons: Mapping[str, str], rules: FusionRules
) -> Region:
    nodes = tuple(node.name or "" for node in unit.nodes)
    pattern = unit_pattern(unit)
    if is_integer:
        why = f"quantized: the {pattern} reads and writes {rules.activation.name}"
        if unit.writes_float:
            why = f"quantized: the {pattern} reads {rules.activation.name}"
    else:
        why = f"float: {unit.refusal or reasons[unit.name]}"
    return Region(unit.name, pattern, nodes, is_integer, why)


def _only_copies(unit: Unit) -> bool:
    return unit.same_scale and not unit.refusal


def _quantized_values(running: Sequence[Unit]) -> set[ir.Value]:
    found: set[ir.Value] = set()
    for unit in running:
        found.update(v for use in unit.inputs if (v := unit.core.inputs[use.index]) is not None)
        if not unit.writes_float:
            found.update(unit.outputs)
    return found


def _splits(node: ir.Node, quantized: set[ir.Value]) -> bool:
    """A float operator that reads or writes a quantized tensor."""
    is_float = any(is_float_activation(value) for value in node.outputs)
    return is_float and _touches(node, quantized)


def _touches(node: ir.Node, quantized: set[ir.Value]) -> bool:
    return any(value in quantized for value in (*node.inputs, *node.outputs))
