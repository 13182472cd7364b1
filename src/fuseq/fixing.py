"""From any tool's quantized model to one whose every Q/DQ pair pays, with the scales it had."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from fuseq.calibration.bias import bias_scales
from fuseq.calibration.carried_ranges import Carried
from fuseq.calibration.kept_ranges import FileScales
from fuseq.calibration.kept_scales import (
    KeptWeights,
    kept_activation_scales,
    kept_weight_scales,
)
from fuseq.calibration.scales import Scale, Scales
from fuseq.errors import TargetError
from fuseq.fix_report import Change, Ways, changes_of
from fuseq.fixing_channels import keep_channels, restore_channels, spare_weights
from fuseq.fixing_exact import with_exact_scales
from fuseq.fixing_sources import Sources, find_sources
from fuseq.formats import USER_FORMATS
from fuseq.model import load, profile_for, save
from fuseq.options import QuantizeOptions
from fuseq.passes.canonical import canonicalize
from fuseq.passes.condense_metadata import condense_metadata
from fuseq.passes.found_scales import FoundScale, float8_reach
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.passes.repairs import Repair
from fuseq.passes.strip_qdq import Stripped, strip_qdq
from fuseq.passes.well_formed import check_size, check_well_formed
from fuseq.placement.known_branches import prefer_known_branches
from fuseq.placement.plan import Plan, QuantizedTensor
from fuseq.planning import Job, Planned, Report, choose, everything, open_job, set_types, silent
from fuseq.quantizing import check_output
from fuseq.targets import parse_target
from fuseq.targets.base import Engine

FixFormat = Literal["auto", "int8", "fp8"]


@dataclasses.dataclass(frozen=True)
class Fixed:
    """What fixing gave.

    Attributes:
        model: Strongly typed, with Q/DQ where they pay.
        plan: What was decided and why.
        scales: Scales by group.
        changes: Each change with its reason, and each scale that was kept.
        before: Engine of the file as it is, None where it does not compile or nothing compiles here.
        float_engine: Engine of the same model without Q/DQ.
        engine: Engine of ``model``.
        notes: What the user should know.
    """

    model: ir.Model
    plan: Plan
    scales: Scales
    changes: tuple[Change, ...]
    before: Engine | None
    float_engine: Engine | None
    engine: Engine | None
    notes: tuple[str, ...]


def fix(
    model: ir.Model | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    options: QuantizeOptions | None = None,
    fmt: FixFormat = "auto",
    keep_placement: bool = False,
    calib: object | None = None,
    report: Report = silent,
) -> Fixed:
    """Strip a quantized model, plan it anew for a target, and apply the scales that it had.

    Args:
        model: ONNX file or model, quantized by any tool.
        output: Where the mended ONNX file goes; None writes nothing.
        options: Target, policy and the rest; its format is ``fmt``.
        fmt: ``auto``: the file's own, or int8 where the target lacks it.
        keep_placement: Change nothing but what is illegal for the target.
        calib: Calibration data, as for :func:`fuseq.quantize`, for tensors that the plan quantizes
            and the file has no scale for; without it their scales are derived or they stay float.
        report: Called with (stage, done, total).

    Raises:
        FuseqError: The model, data, target or output cannot be used; nothing is written.
    """
    # The file's rounding is paid already: every gain is worth keeping.
    options = dataclasses.replace(options or QuantizeOptions(), min_gain=0.0)
    check_output(model, output)
    loaded = model if isinstance(model, ir.Model) else load(model)
    name = "the model" if isinstance(model, ir.Model) else str(model)
    check_size(loaded, name)
    check_well_formed(loaded, name)
    loaded = loaded.clone()
    before, refused = _compile_before(loaded, options, report)
    untouched = loaded.clone()
    stripped = strip_qdq(loaded, folds=not keep_placement)
    options, changed_format = _with_format(loaded, stripped, options, fmt)
    if options.format != "fp8":
        reach = float8_reach(loaded, stripped.scales(loaded))
        stripped = dataclasses.replace(stripped, reach=reach)
    if not stripped.pairs:
        result = _nothing_to_fix(untouched, options, before)
    elif keep_placement:
        from fuseq.fixing_in_place import fix_in_place  # noqa: PLC0415 (imports this)

        result = fix_in_place(loaded, stripped, options, before, report)
    else:
        result = _plan_anew(loaded, stripped, options, calib, before, report)
        result = _or_own_placement(result, untouched, options, report)
    notes = tuple(dict.fromkeys((*refused, *changed_format, *stripped.notes, *result.notes)))
    result = dataclasses.replace(result, notes=notes)
    if output is not None:
        save(result.model, output)
    return result


def _compile_before(
    model: ir.Model, options: QuantizeOptions, report: Report
) -> tuple[Engine | None, tuple[str, ...]]:
    """The file's own engine, or the compiler's words about why there is none."""
    target = parse_target(options.target, options.gpu)
    if not target.predicts or target.missing() is not None:
        return None, ()
    report("compile the file as it is", 0, None)
    try:
        return target.compile(model, profile_for(model, options.batch, options.shapes)), ()
    except TargetError as error:
        return None, (f"the file as it is does not compile: {error}",)


def _with_format(
    model: ir.Model, stripped: Stripped, options: QuantizeOptions, fmt: FixFormat
) -> tuple[QuantizeOptions, tuple[str, ...]]:
    """Choose the format: the one most activations of the file have, if the target has it."""
    if fmt != "auto":
        return dataclasses.replace(options, format=fmt), ()
    stored = [scale.by.format for scale in stripped.scales(model) if scale.kind != "bias"]
    own = "fp8" if stored.count("fp8") * 2 > len(stored) else "int8"
    target = parse_target(options.target, options.gpu)
    try:
        target.storage_formats(own)
    except TargetError as error:
        other = next(name for name in USER_FORMATS if name != own)
        note = f"the file is {own}, the result {other} with the same largest magnitudes: {error}"
        return dataclasses.replace(options, format=other), (note,)
    return dataclasses.replace(options, format=own), ()


def _nothing_to_fix(model: ir.Model, options: QuantizeOptions, before: Engine | None) -> Fixed:
    target = parse_target(options.target, options.gpu)
    plan = Plan(
        target=target.name,
        format=options.format,
        precision=options.precision or target.precision,
        policy=options.policy,
        fingerprint="",
    )
    note = "nothing to fix: the file has no quantization; `fuseq quantize` adds it."
    return Fixed(model, plan, Scales({}), (), before, before, before, (note,))


def _plan_anew(
    model: ir.Model,
    stripped: Stripped,
    options: QuantizeOptions,
    calib: object | None,
    before: Engine | None,
    report: Report,
) -> Fixed:
    report("plan", 0, None)
    in_file = stripped.scales(model)
    as_stripped = model.clone()
    notes = canonicalize(model)
    found = stripped.scales(model)
    opened = open_job(model, options, is_stripped=True)
    job = dataclasses.replace(opened, keep_fp32=stripped.keep_fp32)
    files = FileScales(as_stripped.graph, job.model.graph, in_file, found)
    fixed = plan_with_scales(job, files, calib=calib, repairs=stripped.repairs, report=report)
    return dataclasses.replace(fixed, before=before, notes=(*notes, *fixed.notes))


def plan_with_scales(
    job: Job,
    files: FileScales,
    *,
    calib: object | None = None,
    float_because: Mapping[str, str] | None = None,
    repairs: Sequence[Repair] = (),
    report: Report = silent,
) -> Fixed:
    """Plan a float model for which scales of some tensors are known, and apply them.

    Args:
        job: The canonical float model and the choices.
        files: The known scales.
        calib: Calibration data for tensors without a scale, else these stay float.
        float_because: Regions that stay float for another reason, by name.
        repairs: What was mended before, for the list of changes.
        report: Called with (stage, done, total).
    """
    found, reasons = files.now, dict(float_because or {})
    planned_all = everything(job, reasons)
    planned_all = planned_all.without(reasons, {n: f"float: {why}" for n, why in reasons.items()})
    complete = _with_own_scales(planned_all, job, found)
    complete, sources, missing = _without_unknown(job, complete, files, calib, reasons, report)
    job = dataclasses.replace(job, magnitudes=sources.magnitudes)
    complete = restore_channels(job, complete, found)
    weights = kept_weight_scales(complete, job.model, found, job.precision)

    def scales_with(candidate: Plan, kept: KeptWeights) -> dict[str, Scale]:
        activations = kept_activation_scales(candidate, sources.carried, found, job.precision)
        scales = {**kept.scales, **activations}
        return {**scales, **bias_scales(candidate, scales, job.model)}

    def exact_of(candidate: Plan) -> dict[str, Scale]:
        own = kept_weight_scales(candidate, job.model, found, "fp32")
        activations = kept_activation_scales(candidate, sources.carried, found, "fp32")
        return {**{n: s for n, s in own.scales.items() if n not in own.changed}, **activations}

    planned = choose(job, complete, lambda plan: scales_with(plan, weights), report)
    planned, weights = keep_channels(job, planned, weights, found, scales_with, report)
    planned = spare_weights(job, planned, weights, found, scales_with, report)
    scales = scales_with(planned.plan, weights)
    exact = exact_of(planned.plan)
    planned, scales = with_exact_scales(job, planned, scales, exact, found, report)
    quantized, engine, typing_notes = _finish(job, planned, scales)
    used = {group: scales[group] for group in planned.plan.groups()}
    ways = Ways(sources.carried, sources.measured, weights.changed, missing)
    return Fixed(
        quantized,
        planned.plan,
        Scales(used),
        changes_of(found, repairs, planned.plan, used, ways),
        None,
        planned.float_engine,
        engine,
        (*sources.notes, *planned.notes, *typing_notes),
    )


def _with_own_scales(plan: Plan, job: Job, found: Sequence[FoundScale]) -> Plan:
    """Prefer tensors that have a scale in the file, and that scale to what an operator's range says."""
    own = {scale.tensor for scale in found if scale.kind == "activation"}
    plan = prefer_known_branches(plan, job.model.graph, own)
    return dataclasses.replace(
        plan,
        tensors=tuple(
            dataclasses.replace(entry, known_amax=None) if entry.tensor in own else entry
            for entry in plan.tensors
        ),
    )


def _without_unknown(
    job: Job,
    complete: Plan,
    files: FileScales,
    calib: object | None,
    float_because: dict[str, str],
    report: Report,
) -> tuple[Plan, Sources, dict[str, str]]:
    """Leave out what nobody has a scale for; returns the plan, its ranges, and why by tensor.

    1. A tensor that its region's own operator reads takes the region with it; where kernels need
       integers on both sides, the plan is then made again around the region.
    2. A pair that a region only asked for besides (the other branch of a residual, a pool) goes with
       the other pairs of the same operator, because that needs all of its inputs quantized.
    """
    sources = find_sources(job, complete, files, calib, report)
    missing: dict[str, str] = {}
    replans = job.target.rules(job.options.format).pairs_on_outputs
    for _ in range(_MOST_PLANS):
        unknown = [entry for entry in complete.tensors if _is_unknown(entry, sources.carried)]
        if not unknown:
            break
        missing.update({entry.tensor: _NO_SCALE for entry in unknown})
        if not replans:
            return _without_entries(complete, unknown), sources, missing
        float_because.update({e.region: f"{e.tensor} has no scale: {_NO_SCALE}" for e in unknown})
        complete = _with_own_scales(everything(job, float_because), job, files.now)
        sources = find_sources(job, complete, files, calib, report)
    left = {e.region: _NO_SCALE for e in complete.tensors if _is_unknown(e, sources.carried)}
    return complete.without(left, left), sources, missing


_NO_SCALE = "the file has no scale for it and none carries to it; --calib would find one"
_MOST_PLANS = 4


def _without_entries(plan: Plan, unknown: Sequence[QuantizedTensor]) -> Plan:
    """Cases 1 and 2, in a plan whose regions stand alone."""
    patterns = {region.name: region.pattern for region in plan.regions}
    regions: dict[str, str] = {}
    operators: set[tuple[str, str]] = set()
    for entry in unknown:
        readers = {use.node for use in entry.uses}
        if entry.region in readers or patterns.get(entry.region) == "attention":
            regions[entry.region] = f"float: {entry.tensor} has no scale: {_NO_SCALE}"
        operators.update((entry.region, reader) for reader in readers)
    kept = plan.without(regions, regions)
    tensors = tuple(
        entry
        for entry in kept.tensors
        if entry.kind != "activation"
        or not any((entry.region, use.node) in operators for use in entry.uses)
    )
    return dataclasses.replace(kept, tensors=tensors)


def _is_unknown(entry: QuantizedTensor, carried: Mapping[str, Carried]) -> bool:
    return entry.kind == "activation" and entry.known_amax is None and entry.tensor not in carried


def _finish(
    job: Job, planned: Planned, scales: Mapping[str, Scale]
) -> tuple[ir.Model, Engine | None, tuple[str, ...]]:
    """Reuse the model of the judging trial, or apply the plan now."""
    notes: tuple[str, ...] = ()
    engine: Engine | None
    if planned.trial is not None:
        model, engine = planned.trial.model, planned.trial.engine
        notes = planned.trial.notes
    else:
        model = job.model.clone()
        insert_qdq(model, planned.plan, scales)
        notes = set_types(job, model)
        if planned.plan.tensors and job.judges:
            engine = job.target.compile(model, job.profile)
        else:
            engine = planned.float_engine
    condense_metadata(model)
    model.producer_name = "fuseq"
    return model, engine, notes


def _or_own_placement(
    result: Fixed, untouched: ir.Model, options: QuantizeOptions, report: Report
) -> Fixed:
    """Keep the file's placement, made legal, where its engine is predicted faster than the new one.

    The canonical form is made for quantizing and costs a small graph a kernel or two: where the file's
    own graph is faster still without any pair, that is the result. A file that does not compile as it is
    may do so once it is legal.
    """
    from fuseq.fixing_in_place import fix_in_place, without_pairs  # noqa: PLC0415 (imports this)

    before, engine = result.before, result.engine
    user_decided = options.policy == "full" or options.exclude or options.include
    if user_decided or engine is None or not parse_target(options.target, options.gpu).predicts:
        return result
    if before is not None and before.predicted_us >= engine.predicted_us:
        return result if result.plan.tensors else _or_own_float(result, untouched, options)
    model = untouched.clone()
    try:
        own = fix_in_place(model, strip_qdq(model, folds=False), options, before, report)
    except TargetError:
        if before is not None:
            raise
        return result
    engines = [each for each in (own.engine, own.float_engine) if each is not None]
    if own.engine is None or min(e.predicted_us for e in engines) >= engine.predicted_us:
        return result
    if own.float_engine is not None and own.float_engine.predicted_us < own.engine.predicted_us:
        model = untouched.clone()
        bare = without_pairs(model, strip_qdq(model), options, own)
        return dataclasses.replace(bare, notes=(*bare.notes, _BARE))
    note = (
        f"the file's own placement is kept: predicted {own.engine.predicted_us:.1f} us against "
        f"{engine.predicted_us:.1f} us planned anew."
    )
    return dataclasses.replace(own, notes=(*own.notes, note))


def _or_own_float(result: Fixed, untouched: ir.Model, options: QuantizeOptions) -> Fixed:
    """Where nothing is quantized: the file's own graph, if it is predicted faster than the canonical one."""
    from fuseq.fixing_in_place import without_pairs  # noqa: PLC0415 (imports this)

    model = untouched.clone()
    bare = without_pairs(model, strip_qdq(model), options, result)
    if bare.engine is None or result.engine is None:
        return result
    if bare.engine.predicted_us >= result.engine.predicted_us:
        return result
    return dataclasses.replace(bare, notes=(*bare.notes, _BARE))


_BARE = "nothing is quantized: the file's own graph without Q/DQ is predicted fastest."
