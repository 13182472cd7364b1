"""From ModelOpt's recipe or checkpoint and an exported float graph to a fuseq plan with scales."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.calibration.bias import bias_scales
from fuseq.calibration.kept_ranges import FileScales
from fuseq.calibration.scales import Scale
from fuseq.calibration.tensor_scales import constant_scales, placeholder_scales
from fuseq.fixing import Fixed, plan_with_scales
from fuseq.model import save
from fuseq.modelopt.checkpoint import Checkpoint
from fuseq.modelopt.found import find_scales
from fuseq.modelopt.places import quantizer_places
from fuseq.modelopt.quant_cfg import Setting, apply_recipe, read_recipe
from fuseq.modelopt.recipe_choices import float_reasons, recipe_format, stored_settings
from fuseq.modelopt.recipe_notes import (
    excluded_notes,
    refusals,
    unmatched_notes,
    unplaced_notes,
    unused_notes,
)
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan
from fuseq.planning import Job, Planned, Report, choose, everything, open_job, silent
from fuseq.quantizing import check_output


@dataclasses.dataclass(frozen=True)
class Imported:
    """What a recipe became.

    Attributes:
        planned: The plan with the engines that judged it.
        settings: What the recipe makes of each of ModelOpt's quantizers.
        options: The options that the plan was made with; the format is the recipe's.
        notes: Globs that matched nothing or excluded layers, and what could not be taken over.
    """

    planned: Planned
    settings: Mapping[str, Setting]
    options: QuantizeOptions
    notes: tuple[str, ...]


def import_recipe(
    model: ir.Model | str | os.PathLike[str],
    quant_cfg: object,
    options: QuantizeOptions | None = None,
    report: Report = silent,
) -> Imported:
    """Plan ``model`` as a ModelOpt ``quant_cfg`` asks, with the placement mended for the target.

    1. Layers whose weight or input quantizer the recipe leaves off stay float; each such region names
       the glob. An attention stays float only where a glob switches its quantizers off.
    2. Every other pair stands where the target's kernels need it, not where the recipe puts it:
       residual branches, softmax outputs and pools are added, normalization inputs left out.
    3. The format is the one that most weights get: 8 is INT8, (4, 3) FP8.

    Args:
        model: Float ONNX of ``torch.onnx.export(dynamo=True)``, whose nodes know their modules.
        quant_cfg: Either spelling (:mod:`fuseq.modelopt.quant_cfg`), or a configuration that has one.
        options: Target, policy and the rest.
        report: Progress.

    Raises:
        OptionError: ``quant_cfg`` is neither spelling, or asks for nothing that fuseq has.
        FuseqError: As :func:`fuseq.plan`.
    """
    recipe = read_recipe(quant_cfg)
    job = open_job(model, options or QuantizeOptions())
    places = quantizer_places(job.model)
    applied = apply_recipe(recipe, {place.quantizer: place.module_class for place in places})
    chosen = dataclasses.replace(job.options, format=recipe_format(applied.settings))
    job = open_job(job.model, chosen)
    reasons = float_reasons(places, applied.settings)
    complete = everything(job, reasons)
    complete = complete.without(reasons, {n: f"float: {why}" for n, why in reasons.items()})
    weights = constant_scales(complete, job.model, job.precision)

    def scales_for(candidate: Plan) -> dict[str, Scale]:
        scales = {**weights, **placeholder_scales(candidate, job.precision)}
        return {**scales, **bias_scales(candidate, scales, job.model)}

    planned = choose(job, complete, scales_for, report)
    notes = (
        *recipe.notes,
        *unmatched_notes(recipe, applied),
        *excluded_notes(recipe, applied),
        *refusals(applied.settings),
        *unplaced_notes(places, applied.settings, planned.plan),
    )
    return Imported(planned, applied.settings, chosen, notes)


def checkpoint_job(
    model: ir.Model | str | os.PathLike[str],
    checkpoint: Checkpoint,
    options: QuantizeOptions | None = None,
) -> Job:
    """Open an exported float graph for a target, in the checkpoint's format.

    Args:
        model: Float ONNX with the checkpoint's weights, of ``torch.onnx.export(dynamo=True)``.
        checkpoint: From :func:`fuseq.modelopt.checkpoint.read_checkpoint`, with the names of ``model``.
        options: Target, policy and the rest; the format is the checkpoint's.

    Raises:
        OptionError: The checkpoint quantizes nothing in a format that fuseq has.
        FuseqError: As :func:`fuseq.plan`.
    """
    chosen = options or QuantizeOptions()
    format_name = recipe_format(stored_settings(checkpoint))
    return open_job(model, dataclasses.replace(chosen, format=format_name))


def plan_checkpoint(
    job: Job, checkpoint: Checkpoint, *, calib: object | None = None, report: Report = silent
) -> Fixed:
    """Plan an exported float graph with the ranges of a ModelOpt checkpoint, placement mended.

    1. Layers that the checkpoint leaves float stay float, with the glob that excluded them.
    2. Everything else is planned for the target. A pair that the checkpoint has no range for is
       known by definition (softmax: 1), carried from a tensor with the same values, measured on
       ``calib``, or left out with a reason.
    3. Weights that the checkpoint stored in 8 bits get the same bits again where the plan has the
       same granularity.

    Args:
        job: From :func:`checkpoint_job`.
        checkpoint: The same.
        calib: Calibration data for pairs without a range, as for :func:`fuseq.quantize`.
        report: Progress.

    Raises:
        FuseqError: The data cannot be used, or the compiler refused the model.
    """
    places = quantizer_places(job.model)
    known = {place.quantizer: place.module_class for place in places}
    applied = apply_recipe(checkpoint.recipe, known)
    settings = stored_settings(checkpoint, applied)
    here = {name: setting for name, setting in settings.items() if name in known}
    told = excluded_notes(checkpoint.recipe, dataclasses.replace(applied, settings=here))
    found = find_scales(job.model, checkpoint, places)
    files = FileScales(job.model.graph, job.model.graph, found.scales, found.scales)
    reasons = float_reasons(places, settings)
    fixed = plan_with_scales(job, files, calib=calib, float_because=reasons, report=report)
    own = (*checkpoint.notes, *checkpoint.recipe.notes, *told, *unused_notes(found.unused))
    return dataclasses.replace(fixed, notes=tuple(dict.fromkeys((*own, *fixed.notes))))


def apply_checkpoint(
    model: ir.Model | str | os.PathLike[str],
    checkpoint: Checkpoint,
    output: str | os.PathLike[str] | None = None,
    *,
    options: QuantizeOptions | None = None,
    calib: object | None = None,
    report: Report = silent,
) -> Fixed:
    """Do :func:`checkpoint_job` and :func:`plan_checkpoint`, and write the quantized ONNX file.

    Raises:
        FuseqError: As these two, or ``output`` cannot be written; nothing is written then.
    """
    check_output(model, output)
    job = checkpoint_job(model, checkpoint, options)
    fixed = plan_checkpoint(job, checkpoint, calib=calib, report=report)
    if output is not None:
        save(fixed.model, output)
    return fixed
