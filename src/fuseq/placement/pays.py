"""Takes out of a plan what does not pay, judged by two compiled engines: float and planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fuseq.placement.cells import Cell, Trial, cells_of
from fuseq.placement.crowded import improve_crowded_cells
from fuseq.placement.plan import Plan, Prediction
from fuseq.targets.base import Engine, KernelType

MAX_ROUNDS = 4
"""Compiles spent on taking out losers; each round only removes, so it ends anyway."""


MIN_GAIN = 0.02
"""A region that saves less than this part of its float time stays float: rounding would be paid for
what the cost model cannot tell from nothing (docs/cost-model.md)."""


def keep_what_pays(
    plan: Plan, float_engine: Engine, compile_plan: Callable[[Plan], Trial]
) -> Trial | Plan:
    """Compile, drop the cells that lose, and repeat until none does.

    Args:
        plan: Everything the target runs in the format.
        float_engine: Engine of the same model without Q/DQ.
        compile_plan: Applies a plan and compiles it.

    Returns:
        The best trial, whose engine is predicted faster than the float one; the plan of nothing,
        with the reasons, if there is none.
    """
    best: Trial | None = None
    current = plan
    for _ in range(MAX_ROUNDS):
        if not current.tensors:
            break
        trial = compile_plan(current)
        if best is None or trial.engine.predicted_us < best.engine.predicted_us:
            best = trial
        losers = broken_attentions(trial, float_engine) or _losers(cells_of(trial, float_engine))
        if not losers:
            break
        current = current.without(losers, losers)
    if best is not None:
        best = improve_crowded_cells(best, float_engine, compile_plan)
    if best is None or best.engine.predicted_us >= float_engine.predicted_us:
        return plan_of_nothing(current, float_engine)
    return dataclasses.replace(best, plan=_with_reasons(best, float_engine))


def plan_of_nothing(plan: Plan, float_engine: Engine) -> Plan:
    """The plan with every region left in float; reasons that it has already are kept."""
    reason = "float: no placement is predicted faster than the float engine"
    left = plan.without([region.name for region in plan.regions if region.quantized], reason)
    return dataclasses.replace(left, prediction=prediction_of(float_engine, float_engine))


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


def _losers(cells: list[Cell]) -> dict[str, str]:
    return {
        region: (
            f"float: quantized it would take {cell.quantized_us:.1f} us against "
            f"{cell.float_us:.1f} us in float{_company(cell)} (predicted)"
        )
        for cell in cells
        if cell.gain_us <= (MIN_GAIN * cell.float_us if len(cell.regions) == 1 else 0.0)
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
