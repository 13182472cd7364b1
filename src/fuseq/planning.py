"""From a model to a plan that pays, judged by compiled engines. No data is needed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

import onnx_ir as ir

from fuseq.calibration.bias import bias_scales
from fuseq.calibration.scales import Scale
from fuseq.calibration.tensor_scales import constant_scales, placeholder_scales
from fuseq.model import load, profile_for
from fuseq.options import QuantizeOptions
from fuseq.passes.canonical import canonicalize
from fuseq.passes.equalize import equalize
from fuseq.passes.float_only import check_float
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.passes.integer_form import to_integer_form
from fuseq.passes.typing import set_precision
from fuseq.passes.well_formed import check_well_formed
from fuseq.placement.cells import Trial
from fuseq.placement.choices import PlanOptions
from fuseq.placement.pays import (
    broken_attentions,
    keep_what_pays,
    plan_of_nothing,
    prediction_of,
)
from fuseq.placement.plan import Plan
from fuseq.placement.planner import plan_everything
from fuseq.targets import parse_target
from fuseq.targets.base import Engine, MeasuringTarget, ShapeProfile, Target
from fuseq.targets.fusion import OperatorCosts

Report = Callable[[str, int, int | None], None]
"""``report(stage, done, total)``; total None when it is not known."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One model on its way to one target.

    Attributes:
        model: Canonical float model; never changed by what follows.
        target: The compiler and device.
        precision: Type of what stays float.
        options: The user's choices.
        profile: Static shapes that engines are compiled for.
        notes: What canonicalization told.
        magnitudes: Largest magnitude by value name, once calibrated.
        keep_fp32: Names of nodes that compute in FP32 whatever the ranges say.
    """

    model: ir.Model
    target: Target
    precision: str
    options: QuantizeOptions
    profile: ShapeProfile
    notes: tuple[str, ...]
    magnitudes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    keep_fp32: frozenset[str] = frozenset()

    @property
    def judges(self) -> bool:
        """Engines can be compared here, by predicted or by measured times."""
        knows_times = self.target.predicts or isinstance(self.target, MeasuringTarget)
        return knows_times and self.target.missing() is None


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan with the engines that judged it; engines are None where nothing compiles here."""

    plan: Plan
    float_engine: Engine | None
    trial: Trial | None
    notes: tuple[str, ...]


def silent(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def open_job(
    model: ir.Model | str | os.PathLike[str], options: QuantizeOptions, *, is_stripped: bool = False
) -> Job:
    """Load and canonicalize.

    Args:
        model: Float.
        options: The user's choices.
        is_stripped: The Q/DQ that ``model`` may still have could not be taken out, and stays.

    Raises:
        ModelError: The file cannot be used, or is quantized already.
        OptionError: The target, GPU or a shape is not allowed.
        TargetError: The target lacks the format.
    """
    target = parse_target(options.target, options.gpu)
    rules = target.rules(options.format)
    loaded = load(model) if not isinstance(model, ir.Model) else model.clone()
    check_well_formed(loaded, _file_name(model))
    if not is_stripped:
        check_float(loaded, _file_name(model))
    notes = canonicalize(loaded)
    if options.equalize:
        notes += [str(note) for note in equalize(loaded)]
    if rules.pairs_on_outputs:
        notes += to_integer_form(loaded)
    return Job(
        model=loaded,
        target=target,
        precision=options.precision or target.precision,
        options=options,
        profile=profile_for(loaded, options.batch, options.shapes),
        notes=tuple(notes),
    )


def _file_name(model: ir.Model | str | os.PathLike[str]) -> str:
    return model.graph.name or "model" if isinstance(model, ir.Model) else os.path.basename(model)


def plan(
    model: ir.Model | str | os.PathLike[str],
    options: QuantizeOptions | None = None,
    report: Report = silent,
) -> Planned:
    """Plan a model without data: what is quantized, what is not and why, and the engine predicted.

    Raises:
        FuseqError: As :func:`open_job`, or the compiler refused the model.
    """
    job = open_job(model, options or QuantizeOptions())
    complete = everything(job)
    weights = constant_scales(complete, job.model, job.precision)

    def scales_for(candidate: Plan) -> dict[str, Scale]:
        scales = {**weights, **placeholder_scales(candidate, job.precision)}
        return {**scales, **bias_scales(candidate, scales, job.model)}

    return choose(job, complete, scales_for, report)


def everything(
    job: Job,
    float_because: Mapping[str, str] | None = None,
    costs: OperatorCosts | None = None,
) -> Plan:
    """The plan of all that the target runs in the format and the user allows.

    Args:
        job: The model and the choices.
        float_because: Regions that stay float for another reason, by name.
        costs: Only what pays by these costs, of a target whose kernels are integer from input to
            output; None: all where the choice is measured afterwards.
    """
    options = job.options
    rules = job.target.rules(options.format)
    is_all = costs is None and isinstance(job.target, MeasuringTarget)
    complete = plan_everything(
        job.model,
        rules if costs is None else dataclasses.replace(rules, costs=costs),
        target=job.target.name,
        user_format=options.format,
        precision=job.precision,
        options=PlanOptions(
            policy="full" if is_all else "pays" if costs is not None else options.policy,
            exclude=options.exclude,
            include=options.include,
            keep_first=options.keep_first,
            keep_last=options.keep_last,
            float_because=float_because or {},
        ),
    )
    return dataclasses.replace(complete, policy=options.policy)


def choose(
    job: Job,
    complete: Plan,
    scales_for: Callable[[Plan], Mapping[str, Scale]],
    report: Report = silent,
    float_engine_of: Callable[[Job], Engine] | None = None,
) -> Planned:
    """Compile the float and the planned model; under ``pays`` take out what loses.

    Args:
        job: The model.
        complete: The plan to begin with.
        scales_for: Scales by group, for a plan.
        report: Progress.
        float_engine_of: Gives the float engine, where it is on its way already.
    """
    if not job.judges:
        gap = job.target.missing()
        notes = (f"plan not judged by the compiler: {gap}",) if gap else ()
        return Planned(complete, None, None, (*job.notes, *complete.notes, *notes))
    if isinstance(job.target, MeasuringTarget):
        from fuseq.measuring import choose_measured  # noqa: PLC0415 (imports this module)

        return choose_measured(job, complete, scales_for, job.target, report)
    report("compile", 0, None)
    float_engine = (float_engine_of or compile_float)(job)
    compiled = 0

    def compile_plan(candidate: Plan) -> Trial:
        nonlocal compiled
        compiled += 1
        report("compile", compiled, None)
        return compile_quantized(job, candidate, scales_for(candidate))

    if job.options.policy == "full":
        judged = _compile_everything(complete, float_engine, compile_plan)
    else:
        judged = keep_what_pays(complete, float_engine, compile_plan, job.options.min_gain)
    return _planned(job, complete, float_engine, judged)


def _compile_everything(
    complete: Plan, float_engine: Engine, compile_plan: Callable[[Plan], Trial]
) -> Trial | Plan:
    """Compile the whole plan; an attention whose fusion breaks in the format goes back to float."""
    if not complete.tensors:
        return plan_of_nothing(complete, float_engine)
    trial = compile_plan(complete)
    broken = broken_attentions(trial, float_engine)
    left = complete.without(broken, broken)
    if not broken:
        return trial
    return compile_plan(left) if left.tensors else plan_of_nothing(left, float_engine)


def compile_float(job: Job) -> Engine:
    """Compile the model without Q/DQ, in the job's precision."""
    typed, _ = typed_copy(job, job.model)
    return job.target.compile(typed, job.profile)


def compile_quantized(job: Job, candidate: Plan, scales: Mapping[str, Scale]) -> Trial:
    """Apply a plan with its scales, set the types, and compile."""
    quantized = job.model.clone()
    served = insert_qdq(quantized, candidate, scales)
    notes = set_types(job, quantized)
    engine = job.target.compile(quantized, job.profile)
    return Trial(candidate, engine, served, quantized, notes)


def typed_copy(job: Job, model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    """A strongly typed copy and the notes about what stays FP32."""
    copy = model.clone()
    return copy, set_types(job, copy)


def set_types(job: Job, model: ir.Model) -> tuple[str, ...]:
    """Set the job's precision in place; returns notes about what stays FP32."""
    notes = set_precision(
        model,
        job.precision,
        io_types=job.options.io_types,
        magnitudes=job.magnitudes,
        keep_fp32=job.keep_fp32.intersection(node.name or "" for node in model.graph),
    )
    return tuple(str(note) for note in notes)


def _planned(job: Job, complete: Plan, float_engine: Engine, judged: Trial | Plan) -> Planned:
    notes = list(job.notes)
    if isinstance(judged, Plan):
        notes.append(why_nothing(job, complete, "predicted"))
        return Planned(judged, float_engine, None, (*notes, *judged.notes))
    chosen = dataclasses.replace(judged.plan, prediction=prediction_of(float_engine, judged.engine))
    if judged.engine.predicted_us > float_engine.predicted_us:
        notes.append(
            f"--policy full: predicted {judged.engine.predicted_us:.1f} us against "
            f"{float_engine.predicted_us:.1f} us in {job.precision}."
        )
    return Planned(chosen, float_engine, judged, (*notes, *chosen.notes))


def why_nothing(job: Job, complete: Plan, how: str) -> str:
    """The note of a plan that quantizes nothing.

    Args:
        job: The model and the choices.
        complete: What could be quantized.
        how: How gains were found: ``predicted`` or ``measured``.
    """
    form, target = job.options.format, job.target.name
    placed = sum(node.op_type == "QuantizeLinear" for node in job.model.graph)
    if placed:
        return (
            f"nothing more is quantized: {placed} QuantizeLinear nodes of the file could not be taken "
            "out and stay as they are."
        )
    if not complete.tensors or job.options.policy == "full":
        allowed = " that the options allow" if job.options.exclude or job.options.include else ""
        return (
            f"nothing is quantized: no layer of the model{allowed} can run in {form} on {target}."
        )
    least = job.options.min_gain
    faster = f"{least:g} % faster" if least else "faster"
    return (
        f"nothing is quantized: no {form} placement is {how} {faster} than {job.precision} on "
        f"{target}; --policy full quantizes anyway."
    )
