"""From a float model and data to what quantizing each of its regions costs in accuracy and saves in time."""

from __future__ import annotations

import os
from pathlib import Path

from fuseq.errors import PlanError
from fuseq.evaluate.sensitivity import RegionSensitivity, Sensitivity, ranked
from fuseq.options import QuantizeOptions
from fuseq.placement.cells import Trial
from fuseq.placement.pays import keep_what_pays
from fuseq.placement.plan import Plan, check_fits
from fuseq.planning import Report, silent
from fuseq.targets.base import Engine
from fuseq.trials.accuracy import least_cosine, noise_ratio, outputs_of, store_data
from fuseq.trials.cache import default_folder
from fuseq.trials.executor import Session, parse_executor
from fuseq.trials.gains import region_gains
from fuseq.trials.prepare import Prepared, prepare, source_for
from fuseq.trials.workload import run_trial


def sensitivity(
    model: str | os.PathLike[str],
    *,
    calib: object,
    data: object = None,
    options: QuantizeOptions | None = None,
    plan: Plan | None = None,
    executor: str = "processes",
    cache: str | os.PathLike[str] | None = None,
    report: Report = silent,
) -> Sensitivity:
    """Measure what each region's quantization does to the outputs, and what it saves.

    Each region is quantized alone, and the whole plan is run without it (leave one in, leave one
    out): 2 runs of the model a region, on ONNX Runtime's CPU provider with products in FP32.

    Args:
        model: Float ONNX file.
        calib: Calibration data, as in :func:`fuseq.quantize`.
        data: Samples to compare outputs on; the calibration data by default.
        options: Format, target and the rest. Under ``policy="full"`` every region that the target
            runs in the format is measured, under ``pays`` those that the compiled engine keeps.
        plan: Measure this plan's regions instead; it must fit the model.
        executor: Where the model runs (:mod:`fuseq.trials.executor`).
        cache: Folder of outputs and trials; None: the user's cache folder.
        report: Called with (stage, done, total).

    Raises:
        FuseqError: The model, data, target or plan cannot be used.
    """
    options = options or QuantizeOptions(policy="full")
    where = parse_executor(executor)
    folder = Path(cache) if cache else default_folder(None)
    prepared = prepare(model, calib, options, folder, report)
    samples = prepared.source if data is None else source_for(prepared.job, data)
    file = str(store_data(folder, samples))
    with where.opened() as session:
        engines = _engines(prepared, session, plan)
        chosen = engines[1].plan if engines else _given(prepared, plan)
        return _measured(prepared, chosen, engines, file, session, report)


def _given(prepared: Prepared, plan: Plan | None) -> Plan:
    if plan is None:
        return prepared.points.usual
    check_fits(plan, prepared.job.model)
    missing = {
        entry.tensor
        for entry in plan.tensors
        if entry.kind == "activation" and entry.known_amax is None
    }.difference(prepared.ranges)
    if missing:
        raise PlanError(
            f"plan quantizes {min(missing)!r}, which is no point that fuseq would quantize; "
            "measure a plan of fuseq for this model."
        )
    return plan


def _engines(
    prepared: Prepared, session: Session, plan: Plan | None
) -> tuple[Engine, Trial] | None:
    """The float engine and the plan's, where the target compiles here and predicts times."""
    if not prepared.job.judges:
        return None
    usual = _given(prepared, plan)
    nothing = usual.without([region.name for region in usual.regions], "float: to compare with")

    def compiled(candidate: Plan) -> Trial:
        outcome = session.map(run_trial, [(prepared.workload, candidate)])[0]
        if outcome.engine is None:
            raise PlanError(f"the plan does not compile: {outcome.refusal}")
        return Trial(candidate, outcome.engine, outcome.served, prepared.job.model)

    float_engine = compiled(nothing).engine
    if plan is None and prepared.job.options.policy == "pays":
        kept = keep_what_pays(usual, float_engine, compiled, prepared.job.options.min_gain)
        return float_engine, kept if isinstance(kept, Trial) else compiled(kept)
    return float_engine, compiled(usual)


def _measured(
    prepared: Prepared,
    plan: Plan,
    engines: tuple[Engine, Trial] | None,
    file: str,
    session: Session,
    report: Report,
) -> Sensitivity:
    regions = [region for region in plan.regions if region.quantized]
    names = [region.name for region in regions]
    nothing = plan.without(names, "float")
    plans = [nothing, plan]
    plans += [plan.without([n for n in names if n != name], "float") for name in names]
    plans += [plan.without([name], "float") for name in names]
    exact, whole, *others = outputs_of(prepared.workload, plans, file, session, report)
    errors = [noise_ratio(exact, found) for found in others]
    total = noise_ratio(exact, whole)
    gains = region_gains(engines[1], engines[0], "latency") if engines else {}
    found = [
        RegionSensitivity(
            region=region.name,
            pattern=region.pattern,
            alone=errors[number],
            company=total - errors[len(names) + number],
            saved_us=gains.get(region.name),
        )
        for number, region in enumerate(regions)
    ]
    return Sensitivity(
        regions=ranked(found),
        whole=total,
        cosine=least_cosine(exact, whole),
        samples=len(next(iter(exact.values()))),
        float_us=engines[0].predicted_us if engines else None,
        quantized_us=engines[1].engine.predicted_us if engines else None,
        notes=tuple(dict.fromkeys(prepared.notes)),
    )
