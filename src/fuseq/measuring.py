"""The choice of a plan where the target runs on this machine: by timed runs, not by predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fuseq.calibration.scales import Scale
from fuseq.placement.cells import Trial
from fuseq.placement.integer_units import units_of
from fuseq.placement.measured_choice import Cuts, FloatModel, keep_fastest, sentence
from fuseq.placement.measured_costs import measured_costs, samples_in
from fuseq.placement.plan import Plan
from fuseq.planning import (
    Job,
    Planned,
    Report,
    compile_quantized,
    everything,
    typed_copy,
    why_nothing,
)
from fuseq.targets.base import Engine, MeasuringTarget


def choose_measured(
    job: Job,
    complete: Plan,
    scales_for: Callable[[Plan], Mapping[str, Scale]],
    target: MeasuringTarget,
    report: Report,
) -> Planned:
    """Time float, the complete plan and cuts of it, taking turns; keep the fastest.

    Args:
        job: The model.
        complete: All that the target runs in the format.
        scales_for: Scales by group, for a plan.
        target: The job's target.
        report: Progress.
    """
    report("compile", 0, None)
    model, _ = typed_copy(job, job.model)
    floating = FloatModel(model, job.target.compile(model, job.profile))
    compiled = 0

    def compile_plan(candidate: Plan) -> Trial:
        nonlocal compiled
        compiled += 1
        report("compile", compiled, None)
        return compile_quantized(job, candidate, scales_for(candidate))

    kept = keep_fastest(
        complete,
        floating,
        compile_plan,
        _cuts_of(job, complete, floating.engine),
        lambda models: target.measure(models, job.profile),
        target.machine,
        is_full=job.options.policy == "full",
        min_gain_percent=job.options.min_gain,
    )
    return _planned(job, complete, kept, floating.engine)


def _cuts_of(job: Job, complete: Plan, float_engine: Engine) -> Cuts:
    """Cuts that leave float whatever ``complete`` leaves float, and what does not pay by costs."""
    rules = job.target.rules(job.options.format)
    inside = {region.name for region in complete.regions if region.quantized}
    outside = {
        region.name: region.reason.removeprefix("float: ")
        for region in complete.regions
        if not region.quantized
    }

    def cuts(trial: Trial) -> Iterator[tuple[str, Plan]]:
        if rules.costs is None:
            return
        units = [unit for unit in units_of(job.model.graph, rules) if unit.name in inside]
        samples = samples_in(job.model.graph, job.profile)
        measured = measured_costs(units, float_engine, trial, rules.costs, samples)
        yield "cut by measured kernels", everything(job, outside, costs=measured)
        yield "cut by estimated costs", everything(job, outside, costs=rules.costs)

    return cuts


def _planned(job: Job, complete: Plan, kept: Trial | Plan, float_engine: Engine) -> Planned:
    chosen = kept if isinstance(kept, Plan) else kept.plan
    notes = [*job.notes, *chosen.notes]
    if chosen.measurement is not None:
        notes.append(sentence(chosen.measurement))
    if isinstance(kept, Plan):
        notes.append(why_nothing(job, complete, "measured"))
    return Planned(chosen, float_engine, None if isinstance(kept, Plan) else kept, tuple(notes))
