"""Takes out of a plan what does not pay, judged by two compiled engines: float and planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fuseq.placement.cells import Cell, Trial, cells_of
from fuseq.placement.crowded import improve_crowded_cells
from fuseq.placement.plan import MIN_GAIN_PERCENT, Plan, Prediction
from fuseq.targets.base import Engine, KernelType

MAX_ROUNDS = 4
"""Compiles spent on taking out losers; each round only removes, so it ends anyway."""


def keep_what_pays(
    plan: Plan,
    float_engine: Engine,
    compile_plan: Callable[[Plan], Trial],
    min_gain_percent: float = MIN_GAIN_PERCENT,
) -> Trial | Plan:
    """Keep what gains, part by part and as a whole.

    1. Cells that lose are dropped, and the rest is compiled again, until none does.
    2. Crowded cells are looked into (:mod:`fuseq.placement.crowded`).
    3. Cells that gain too little for their rounding are dropped, if that costs as little.
    4. The whole engine must gain enough too: else nothing is quantized.

    Args:
        plan: Everything the target runs in the format.
        float_engine: Engine of the same model without Q/DQ.
        compile_plan: Applies a plan and compiles it.
        min_gain_percent: Least predicted gain, of a cell's float time and of the engine's.

    Returns:
        The best trial, whose engine is predicted faster than the float one by so much; the plan of
        nothing, with the reasons, if there is none.
    """
    least = min_gain_percent / 100
    best, current = _without_losers(plan, float_engine, compile_plan, least)
    if best is None:
        return plan_of_nothing(current, float_engine)
    best = improve_crowded_cells(best, float_engine, compile_plan)
    fastest_us = best.engine.predicted_us
    if fastest_us >= float_engine.predicted_us:
        return plan_of_nothing(current, float_engine)
    best = _without_thin_cells(best, float_engine, compile_plan, least)
    if best.engine.predicted_us > (1 - least) * float_engine.predicted_us:
        return _too_little(best.plan, float_engine, fastest_us, min_gain_percent)
    return dataclasses.replace(best, plan=_with_reasons(best, float_engine))


def _without_losers(
    plan: Plan, float_engine: Engine, compile_plan: Callable[[Plan], Trial], least: float
) -> tuple[Trial | None, Plan]:
    """The fastest trial on the way (case 1), and the last plan, whose reasons are complete."""
    best: Trial | None = None
    for _ in range(MAX_ROUNDS):
        if not plan.tensors:
            break
        trial = compile_plan(plan)
        if best is None or trial.engine.predicted_us < best.engine.predicted_us:
            best = trial
        cells = cells_of(trial, float_engine)
        losers = broken_attentions(trial, float_engine) or _losers(cells, least)
        if not losers:
            break
        plan = plan.without(losers, losers)
    return best, plan


def _without_thin_cells(
    best: Trial, float_engine: Engine, compile_plan: Callable[[Plan], Trial], least: float
) -> Trial:
    """Leave cells in float that gain less than ``least`` of their float time (case 3)."""
    for _ in range(MAX_ROUNDS):
        thin = [
            cell for cell in cells_of(best, float_engine) if cell.gain_us < least * cell.float_us
        ]
        reasons = _reasons(thin)
        candidate = best.plan.without(reasons, reasons)
        if not thin or not candidate.tensors:
            break
        trial = compile_plan(candidate)
        cost_us = trial.engine.predicted_us - best.engine.predicted_us
        if cost_us > least * sum(cell.float_us for cell in thin):
            break
        best = trial
    return best


def plan_of_nothing(plan: Plan, float_engine: Engine, reason: str = "") -> Plan:
    """The plan with every region left in float; reasons that it has already are kept."""
    reason = reason or "float: no placement is predicted faster than the float engine"
    left = plan.without([region.name for region in plan.regions if region.quantized], reason)
    return dataclasses.replace(left, prediction=prediction_of(float_engine, float_engine))


def _too_little(
    plan: Plan, float_engine: Engine, fastest_us: float, min_gain_percent: float
) -> Plan:
    """The plan of nothing where the best placement does not gain enough (case 4)."""
    float_us = float_engine.predicted_us
    gain = (
        f"{fastest_us:.1f} us against {float_us:.1f} us, {100 * (1 - fastest_us / float_us):.2f} %"
    )
    reason = (
        f"float: all that gains would gain the engine {gain} (predicted), less than --min-gain "
        f"{min_gain_percent:g}"
    )
    note = f"the best placement is predicted at {gain} less; --min-gain 0 takes it."
    nothing = plan_of_nothing(plan, float_engine, reason)
    return dataclasses.replace(nothing, notes=(*nothing.notes, note))


def broken_attentions(trial: Trial, float_engine: Engine) -> dict[str, str]:
    """Attention regions that are one kernel in the float engine and are not in the planned one."""
    fused_float, fused = _attention_nodes(float_engine), _attention_nodes(trial.engine)
    return {
        region.name: (
            f"float: the compiler fuses this attention in float and not in {trial.plan.format} "
            "(compiled)"
        )
        for region in trial.plan.regions
        if region.quantized
        and region.pattern == "attention"
        and region.name in fused_float
        and region.name not in fused
    }


def _attention_nodes(engine: Engine) -> set[str]:
    return {
        node
        for kernel in engine.kernels
        if kernel.type is KernelType.ATTENTION
        for node in kernel.nodes
    }


def prediction_of(float_engine: Engine, engine: Engine) -> Prediction:
    """The figures that a plan keeps of both engines."""
    return Prediction(
        float_us=round(float_engine.predicted_us, 3),
        quantized_us=round(engine.predicted_us, 3),
        float_kernels=len(float_engine.kernels),
        quantized_kernels=len(engine.kernels),
        float_activation_bytes=float_engine.activation_bytes,
        quantized_activation_bytes=engine.activation_bytes,
    )


def _losers(cells: list[Cell], least: float) -> dict[str, str]:
    """Reasons by region. A cell of several regions may lose only until one of them is left out."""
    return _reasons(
        [c for c in cells if c.gain_us <= (least * c.float_us if len(c.regions) == 1 else 0.0)]
    )


def _reasons(cells: list[Cell]) -> dict[str, str]:
    return {
        region: (
            f"float: quantized it would take {cell.quantized_us:.1f} us against "
            f"{cell.float_us:.1f} us in float{_company(cell)} (predicted)"
        )
        for cell in cells
        for region in cell.regions
    }


def _with_reasons(trial: Trial, float_engine: Engine) -> Plan:
    """Add to each kept region what it gains."""
    gains = {region: cell for cell in cells_of(trial, float_engine) for region in cell.regions}
    regions = tuple(
        dataclasses.replace(
            region,
            reason=f"{region.reason}; {gains[region.name].quantized_us:.1f} us against "
            f"{gains[region.name].float_us:.1f} us in float{_company(gains[region.name])} "
            "(predicted)",
        )
        if region.name in gains
        else region
        for region in trial.plan.regions
    )
    return dataclasses.replace(
        trial.plan, regions=regions, prediction=prediction_of(float_engine, trial.engine)
    )


def _company(cell: Cell) -> str:
    others = len(cell.regions) - 1
    return f" together with {others} regions that share its kernels" if others else ""
