"""From a float model and calibration data to a quantized model that its compiler has judged."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.calibration.bias import bias_scales
from fuseq.calibration.channel_maxima import channel_maxima
from fuseq.calibration.image_presets import image_preset
from fuseq.calibration.ranges import Problem, Range
from fuseq.calibration.refine import Refined, refine
from fuseq.calibration.runner import Collected, collect
from fuseq.calibration.scales import Scale, Scales
from fuseq.calibration.sources import open_source
from fuseq.calibration.tensor_scales import activation_scales, constant_scales
from fuseq.early_float import EarlyFloat
from fuseq.errors import OptionError
from fuseq.formats import format_named
from fuseq.model import close_files, save
from fuseq.options import QuantizeOptions
from fuseq.passes.condense_metadata import condense_metadata
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.passes.migrate import migratable, migrate
from fuseq.passes.set_constants import set_constants
from fuseq.placement.plan import Plan, QuantizedTensor, check_fits
from fuseq.planning import Job, Planned, Report, choose, everything, open_job, set_types, silent
from fuseq.small_gain import told_where_small
from fuseq.targets.base import Engine


@dataclasses.dataclass(frozen=True)
class Quantized:
    """What quantizing gave.

    Attributes:
        model: Strongly typed, with Q/DQ and low-precision weights.
        plan: What was decided and why.
        scales: Scales by group.
        float_engine: Engine of the float model, None where nothing compiles here.
        engine: Engine of ``model``, None where nothing compiles here.
        notes: What the user should know.
        job: The canonical float model with the magnitudes that calibration found:
            :func:`fuseq.planning.typed_copy` makes of it the model of ``float_engine``.
    """

    model: ir.Model
    plan: Plan
    scales: Scales
    float_engine: Engine | None
    engine: Engine | None
    notes: tuple[str, ...]
    job: Job


def quantize(
    model: ir.Model | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    calib: object,
    options: QuantizeOptions | None = None,
    plan: Plan | None = None,
    report: Report = silent,
) -> Quantized:
    """Quantize ``model`` for a target and write it to ``output``.

    Args:
        model: ONNX file or model, float.
        output: Where the quantized ONNX file goes; None writes nothing.
        calib: Calibration data: a folder of images, an array file or folder of them,
            ``module:function``, ``random``, or an iterable of dicts of arrays.
        options: Format, target and the rest.
        plan: A plan to apply instead of planning; it must fit the model.
        report: Called with (stage, done, total).

    Raises:
        FuseqError: The model, data, target, plan or output cannot be used; nothing is written.
    """
    options = options or QuantizeOptions()
    check_output(model, output)
    job = open_job(model, options)
    if plan is not None:
        check_fits(plan, job.model)
    source = open_source(
        calib,
        job.model,
        preset=image_preset(options.preset) if options.preset else None,
        limit=options.limit,
        shapes=job.profile.optimum,
        seed=options.seed,
    )
    result = quantize_job(job, source, plan, report)
    if output is not None:
        close_files(job.model)  # what was quantized is read no more
        save(result.model, output)
    return result


def quantize_job(job: Job, source: Source, plan: Plan | None, report: Report) -> Quantized:
    """Quantize an opened model with an opened source; as :func:`quantize`, without a file."""
    job = smoothed(job, smoothing_maxima(job, source))
    complete = plan or everything(job)
    early = EarlyFloat(job)
    found = _measure(job, complete, source, report)
    job = dataclasses.replace(
        job, magnitudes={name: span.amax for name, span in found.magnitudes.items()}
    )
    unusable = _unusable(complete, found.ranges)
    complete = complete.without(unusable, {name: f"float: {why}" for name, why in unusable.items()})
    if unusable and plan is None and job.target.rules(job.options.format).pairs_on_outputs:
        complete = everything(job, unusable)  # a float operator moves the ends of its island
    weights = constant_scales(complete, job.model, job.precision)

    def scales_for(candidate: Plan) -> dict[str, Scale]:
        return _all_scales(candidate, weights, found.ranges, job)

    if plan is None:
        planned = told_where_small(
            job, choose(job, complete, scales_for, report, early.engine_of), source
        )
    else:
        planned = choose(_as_it_is(job), complete, scales_for, report, early.engine_of)
    notes = (*planned.notes, *found.notes)
    scales = scales_for(planned.plan)
    refined = refined_values(job, planned.plan, scales, source, report)
    if refined.values:
        planned = dataclasses.replace(planned, trial=None)  # its engine has the old values
    return _finish(job, planned, scales, refined.values, (*notes, *refined.notes))


def smoothing_maxima(job: Job, source: Source) -> dict[str, np.ndarray]:
    """Largest magnitude by channel, [channels], of what ``--smooth`` would move, by tensor name; one
    more reading of ``source`` for each eight tensors. Empty where the options do not ask for it."""
    if job.options.smooth is None:
        return {}
    names = [found.norm.outputs[0].name or "" for found in migratable(job.model.graph)]
    return channel_maxima(job.model, names, source)


def smoothed(job: Job, maxima: Mapping[str, np.ndarray]) -> Job:
    """The job with ranges of channels moved into weights, where the options ask for it."""
    strength = job.options.smooth
    if strength is None:
        return job
    model = job.model.clone()
    notes = migrate(model, maxima, strength)
    told = [str(note) for note in notes] or [
        "--smooth: no LayerNorm is read by linear layers alone."
    ]
    return dataclasses.replace(job, model=model, notes=(*job.notes, *told))


def refined_values(
    job: Job, plan: Plan, scales: Mapping[str, Scale], source: Source, report: Report
) -> Refined:
    """New values of weights and biases, where the options ask for them."""
    second_order = job.options.rounding == "gptq"
    if not (second_order or job.options.bias_correction):
        return Refined({}, ())
    return refine(
        job.model, plan, scales, source,
        second_order=second_order, bias_correction=job.options.bias_correction,
        progress=functools.partial(report, "round"),
    )  # fmt: skip


def _finish(
    job: Job,
    planned: Planned,
    scales: Mapping[str, Scale],
    values: Mapping[str, np.ndarray],
    notes: tuple[str, ...],
) -> Quantized:
    """Reuse the model of the judging trial, or apply the plan now."""
    engine: Engine | None
    if planned.trial is not None:
        model, engine = planned.trial.model, planned.trial.engine
        notes = (*notes, *planned.trial.notes)
    else:
        model, typing_notes = apply_plan(job, planned.plan, scales, values)
        notes = (*notes, *typing_notes)
        engine = planned.float_engine if not planned.plan.tensors else _compile(job, model)
    sign(model)
    used = {group: scales[group] for group in planned.plan.groups() if group in scales}
    return Quantized(
        model, planned.plan, Scales(used), planned.float_engine, engine,
        tuple(dict.fromkeys(notes)), job,
    )  # fmt: skip


def apply_plan(
    job: Job,
    plan: Plan,
    scales: Mapping[str, Scale],
    values: Mapping[str, np.ndarray] | None = None,
) -> tuple[ir.Model, tuple[str, ...]]:
    """The job's model, with other constants if given, a plan's pairs and the job's types; and what
    stays FP32."""
    model = job.model.clone()
    set_constants(model, values or {})
    insert_qdq(model, plan, scales)
    return model, set_types(job, model)


def sign(model: ir.Model) -> None:
    """Condense what the exporter wrote about nodes, and name the producer, in place."""
    condense_metadata(model)
    model.producer_name = "fuseq"


def _compile(job: Job, model: ir.Model) -> Engine | None:
    return job.target.compile(model, job.profile) if job.judges else None


def check_output(
    model: ir.Model | str | os.PathLike[str], output: str | os.PathLike[str] | None
) -> None:
    """Refuse before the long work what would fail after it."""
    if output is None:
        return
    file = Path(output)
    if not isinstance(model, ir.Model) and file.exists() and file.samefile(model):
        raise OptionError(f"--output {file} is the input; the input is never overwritten.")
    if file.is_dir():
        raise OptionError(f"--output {file} is a folder; give the path of a file.")
    if not file.parent.is_dir():
        raise OptionError(f"--output {file}: the folder {file.parent} does not exist; make it.")
    if not os.access(file.parent, os.W_OK):
        raise OptionError(f"--output {file}: the folder {file.parent} is not writable.")


def _measure(job: Job, plan: Plan, source: Source, report: Report) -> Collected:
    """Ranges of the plan's activations and magnitudes of all others, in one pass over the data."""
    formats = {entry.tensor: format_named(entry.format) for entry in _calibrated(plan)}
    return collect(
        job.model,
        formats,
        source,
        job.options.method,
        formats=formats,
        all_tensors=job.precision == "fp16",
        progress=functools.partial(report, "calibrate"),
    )


def _calibrated(plan: Plan) -> list[QuantizedTensor]:
    """Activations whose range only data can tell."""
    return [
        entry for entry in plan.tensors if entry.kind == "activation" and entry.known_amax is None
    ]


def _unusable(plan: Plan, ranges: Mapping[str, Range]) -> dict[str, str]:
    """Why regions stay float whose tensors gave no scale: always zero, never seen, not finite."""
    reasons: dict[str, str] = {}
    for entry in _calibrated(plan):
        problem = ranges[entry.tensor].problem if entry.tensor in ranges else Problem.NEVER_SEEN
        if problem is not None:
            reasons[entry.region] = f"{entry.tensor} is {problem.value} in calibration"
    return reasons


def _all_scales(
    plan: Plan, weights: Mapping[str, Scale], ranges: Mapping[str, Range], job: Job
) -> dict[str, Scale]:
    scales = {**weights, **activation_scales(plan, ranges, job.precision)}
    return {**scales, **bias_scales(plan, scales, job.model)}


def _as_it_is(job: Job) -> Job:
    """A given plan is applied whole: the user has decided."""
    return dataclasses.replace(job, options=dataclasses.replace(job.options, policy="full"))
