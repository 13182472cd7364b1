"""`--keep-placement`: the file's own Q/DQ, with only that changed which the target refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from fuseq.calibration.kept_ranges import change_of_format
from fuseq.calibration.kept_scales import stored_scale
from fuseq.calibration.scales import Scale, Scales, activation_scale, weight_scales
from fuseq.calibration.tensor_scales import STORED_AS
from fuseq.errors import ModelError, TargetError
from fuseq.fix_report import Change, Ways, changes_of
from fuseq.fixing import Fixed
from fuseq.formats import INT8, format_named
from fuseq.model import profile_for
from fuseq.options import QuantizeOptions
from fuseq.passes.found_scales import FoundScale
from fuseq.passes.strip_qdq import Stripped
from fuseq.placement.pays import prediction_of
from fuseq.placement.plan import Plan, QuantizedTensor
from fuseq.placement.plan_of_file import plan_of_file
from fuseq.planning import Job, Report, compile_float, compile_quantized, typed_copy
from fuseq.targets import parse_target
from fuseq.targets.base import Engine


def fix_in_place(
    model: ir.Model,
    stripped: Stripped,
    options: QuantizeOptions,
    before: Engine | None,
    report: Report,
) -> Fixed:
    """Put the file's pairs back where they were, legal for the target.

    What is changed, and nothing else: other spellings become Q/DQ; the opset is raised; the graph
    gets one float type and every scale the type beside it; zero points become 0 where the target
    has none; INT32 biases become float where it adds none; weights are stored in their format
    behind DequantizeLinear alone; scales that no engine can use are dropped with their pair.

    Raises:
        TargetError: The target refuses the model for another reason.
    """
    job = _job(model, stripped, options)
    target, rules = job.target, job.target.rules(options.format)
    found = stripped.scales(model)
    plan, by_group = plan_of_file(
        model, found, rules,
        target=target.name, user_format=options.format, precision=job.precision,
    )  # fmt: skip
    scales, changed = _scales(plan, by_group, model, job.precision)
    quantized, float_engine, engine = _write(job, plan, scales, report)
    quantized.producer_name = "fuseq"
    ways = Ways({}, frozenset(), changed, {})
    changes = changes_of(found, stripped.repairs, plan, scales, ways)
    if float_engine is not None and engine is not None:
        plan = dataclasses.replace(plan, prediction=prediction_of(float_engine, engine))
    return Fixed(
        quantized, plan, Scales(scales), _with_reasons(changes, by_group, plan), before,
        float_engine, engine, (),
    )  # fmt: skip


def without_pairs(
    model: ir.Model, stripped: Stripped, options: QuantizeOptions, own: Fixed
) -> Fixed:
    """The file's own graph without Q/DQ, compiled.

    Args:
        model: The stripped model.
        stripped: What was taken off it.
        options: As for :func:`fix_in_place`.
        own: What was found before, whose plan and file's engine are taken.
    """
    job = _job(model, stripped, options)
    typed, notes = typed_copy(job, model)
    typed.producer_name = "fuseq"
    float_engine = job.target.compile(typed, job.profile)
    prediction = prediction_of(float_engine, float_engine)
    plan = dataclasses.replace(own.plan, tensors=(), regions=(), prediction=prediction)
    ways = Ways({}, frozenset(), {}, {})
    changes = changes_of(stripped.scales(model), stripped.repairs, plan, {}, ways)
    reason = "float: the file's own graph is predicted faster without Q/DQ"
    changes = tuple(
        dataclasses.replace(c, reason=reason) if c.action == "removed" else c for c in changes
    )
    return dataclasses.replace(
        own, model=typed, plan=plan, scales=Scales({}), changes=changes, engine=float_engine,
        float_engine=float_engine, notes=notes,
    )  # fmt: skip


def _job(model: ir.Model, stripped: Stripped, options: QuantizeOptions) -> Job:
    target = parse_target(options.target, options.gpu)
    return Job(
        model=model,
        target=target,
        precision=options.precision or target.precision,
        options=options,
        profile=profile_for(model, options.batch, options.shapes),
        notes=(),
        keep_fp32=stripped.keep_fp32,
    )


def _write(
    job: Job, plan: Plan, scales: Mapping[str, Scale], report: Report
) -> tuple[ir.Model, Engine | None, Engine | None]:
    from fuseq.passes.insert_qdq import insert_qdq  # noqa: PLC0415

    if not job.judges:
        quantized = job.model.clone()
        insert_qdq(quantized, plan, scales)
        return typed_copy(job, quantized)[0], None, None
    report("compile", 1, None)
    try:
        trial = compile_quantized(job, plan, scales)
    except TargetError as error:
        raise TargetError(
            f"{error} The file's own placement cannot be kept; run `fuseq fix` without "
            "--keep-placement."
        ) from error
    report("compile", 0, None)
    return trial.model, compile_float(job), trial.engine


def _scales(
    plan: Plan, by_group: Mapping[str, FoundScale], model: ir.Model, precision: str
) -> tuple[dict[str, Scale], dict[str, str]]:
    """Scale by group, and for those that could not be kept, why."""
    scales: dict[str, Scale] = {}
    changed: dict[str, str] = {}
    has_zero_points = any(
        entry.kind == "activation" and not format_named(entry.format).symmetric
        for entry in plan.tensors
    )
    for entry in plan.tensors:
        found = by_group[entry.group]
        if entry.kind == "bias":
            scale = stored_scale(found.by.scale, precision)
            scales[entry.group] = Scale(scale, None, "int32", entry.axis)
        elif entry.kind == "activation":
            scales[entry.group] = _activation(entry, found, precision)
        else:
            scales[entry.group], why = _weight(entry, found, model, precision, has_zero_points)
            if why:
                changed[entry.group] = why
    return scales, changed


def _activation(entry: QuantizedTensor, found: FoundScale, precision: str) -> Scale:
    fmt, by = format_named(entry.format), found.by
    if (
        by.format == fmt.name
        and by.axis == entry.axis
        and not (fmt.symmetric and by.zero_point.any())
    ):
        zero = None if fmt.symmetric else by.zero_point.astype(np.int32)
        return Scale(stored_scale(by.scale, precision), zero, fmt.name, entry.axis)
    span = found.range_for(fmt)
    scale, zero = activation_scale(span.minimum, span.maximum, fmt, STORED_AS[precision])
    return Scale(scale, None if fmt.symmetric else zero, fmt.name, None)


def _weight(
    entry: QuantizedTensor,
    found: FoundScale,
    model: ir.Model,
    precision: str,
    has_zero_points: bool,
) -> tuple[Scale, str]:
    """A weight's scale; its zero points stay only beside activations that have some too."""
    fmt, by = format_named(entry.format), found.by
    is_same = by.format == fmt.name or (by.format, fmt.name) == ("uint8", "int8")
    if is_same and found.is_centred:
        return Scale(stored_scale(by.scale, precision), None, fmt.name, entry.axis), ""
    if by.format == "uint8" == fmt.name and has_zero_points:
        zero = by.zero_point.astype(np.int32)
        return Scale(stored_scale(by.scale, precision), zero, fmt.name, entry.axis), ""
    value = model.graph.initializers.get(entry.tensor)
    if value is None or value.const_value is None:
        raise ModelError(f"{entry.tensor!r} is quantized as a weight, but it is no constant.")
    if not fmt.symmetric:
        fmt = INT8
    array, stored_as = value.const_value.numpy(), STORED_AS[precision]
    scale = weight_scales(array, fmt, entry.axis, stored_as=stored_as)
    return Scale(scale, None, fmt.name, entry.axis), f"it was {by.format} with a zero point"


def _with_reasons(
    changes: tuple[Change, ...], by_group: Mapping[str, FoundScale], plan: Plan
) -> tuple[Change, ...]:
    """Name what made an activation's scale another one."""
    formats = {entry.tensor: entry.format for entry in plan.tensors}
    found = {scale.tensor: scale for scale in by_group.values() if scale.kind == "activation"}
    named = []
    for change in changes:
        scale, fmt = found.get(change.tensor), formats.get(change.tensor)
        if change.action == "rescaled" and scale is not None and fmt is not None:
            why = change_of_format(scale, format_named(fmt)) or change.reason
            change = dataclasses.replace(change, reason=why)  # noqa: PLW2901
        named.append(change)
    return tuple(named)
