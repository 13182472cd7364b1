"""Keeps the fastest of a few plans, judged by timed runs on the machine that the target is.

Candidates take turns, so that what disturbs one disturbs all. They are

1. ``float``: nothing is quantized;
2. ``everything``: all operators with weights in the format, and what pays around them;
3. cuts of it, which leave parts in float (``cut by measured kernels``, ``cut by estimated costs``).

The numbers are kept in the plan, and the choice follows from them alone (:func:`fastest`): a plan
file says why it is what it is, and applied again it is not measured again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from fuseq.placement.cells import Trial
from fuseq.placement.plan import MIN_GAIN_PERCENT, Candidate, Measurement, Plan
from fuseq.targets.base import Engine, Race, Timing

FLOAT = "float"
EVERYTHING = "everything"

Cuts = Callable[[Trial], Iterator[tuple[str, Plan]]]
"""Cuts of the plan of everything, by name, given its trial."""

RunRace = Callable[[Mapping[str, ir.Model]], Race]
"""Times models, taking turns; speedups refer to the first."""


@dataclasses.dataclass(frozen=True)
class FloatModel:
    """The float model, typed, and its engine."""

    model: ir.Model
    engine: Engine


def fastest(
    candidates: Sequence[Candidate], min_gain_percent: float = MIN_GAIN_PERCENT
) -> Candidate:
    """The fastest candidate, if it beats the first, which is float, by ``min_gain_percent``."""
    best = max(candidates[1:], key=lambda each: each.speedup, default=candidates[0])
    return best if best.speedup >= 1 + min_gain_percent / 100 else candidates[0]


def keep_fastest(
    complete: Plan,
    floating: FloatModel,
    compile_plan: Callable[[Plan], Trial],
    cuts: Cuts,
    race: RunRace,
    machine: str,
    is_full: bool,
    min_gain_percent: float = MIN_GAIN_PERCENT,
) -> Trial | Plan:
    """Time the candidates and keep the fastest; ``is_full`` keeps everything and says its cost.

    Args:
        complete: All that the target runs in the format.
        floating: What every candidate is compared with.
        compile_plan: Applies a plan and compiles it.
        cuts: Other candidates; not asked where ``is_full``.
        race: Times models.
        machine: What it was measured on, in words.
        is_full: The user has decided.
        min_gain_percent: How much faster than float a candidate must be.

    Returns:
        The trial that is kept, or the plan of nothing; the measurement is in the plan.
    """
    if not complete.tensors:
        return complete
    trials = {EVERYTHING: compile_plan(complete)}
    if complete.measurement is not None:  # a plan that was chosen before is applied as it is
        return trials[EVERYTHING]
    if not is_full:
        for name, plan in cuts(trials[EVERYTHING]):
            if plan.tensors and all(
                plan.tensors != other.plan.tensors for other in trials.values()
            ):
                trials[name] = compile_plan(plan)
    models = {FLOAT: floating.model, **{name: trial.model for name, trial in trials.items()}}
    found = race(models)
    times = found.times
    counts = {name: _operators(trial.plan) for name, trial in trials.items()}
    candidates = tuple(_candidate(each, times[0], counts.get(each.name, 0)) for each in times)
    chosen = EVERYTHING if is_full else fastest(candidates, min_gain_percent).name
    measurement = Measurement(f"{machine}, {found.how}", times[0].rounds, candidates, chosen)
    if chosen == FLOAT:
        return _plan_of_nothing(complete, measurement)
    kept = trials[chosen]
    return dataclasses.replace(kept, plan=dataclasses.replace(kept.plan, measurement=measurement))


def _candidate(timing: Timing, in_float: Timing, operators: int) -> Candidate:
    speedup = min(in_float.best_ms / timing.best_ms, timing.speedup)
    return Candidate(
        timing.name, operators, round(timing.median_ms, 3), round(timing.best_ms, 3),
        round(speedup, 3),
    )  # fmt: skip


def sentence(measurement: Measurement) -> str:
    """What was measured and what was kept, for the user."""
    parts = [
        f"{each.name} {each.median_ms:.1f} ms (best {each.best_ms:.1f}"
        + (f"; {each.operators} operators, {each.speedup:.2f} times as fast)" if index else ")")
        for index, each in enumerate(measurement.candidates)
    ]
    return (
        f"measured on this machine ({measurement.machine}), {measurement.rounds} rounds, taking "
        f"turns: {'; '.join(parts)}. Kept: {measurement.chosen}."
    )


def _operators(plan: Plan) -> int:
    return sum(region.quantized for region in plan.regions)


def _plan_of_nothing(complete: Plan, measurement: Measurement) -> Plan:
    names = [region.name for region in complete.regions if region.quantized]
    left = complete.without(names, "float: no placement was measured faster than float here")
    return dataclasses.replace(left, measurement=measurement)
