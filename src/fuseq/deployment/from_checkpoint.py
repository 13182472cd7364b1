"""A ModelOpt checkpoint as what a deployment begins with, instead of a float ONNX file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.deployment.options import DeployOptions
from fuseq.errors import MissingExtraError, OptionError
from fuseq.model import save
from fuseq.modelopt.checkpoint import Checkpoint, is_checkpoint
from fuseq.modelopt.importing import checkpoint_job, plan_checkpoint
from fuseq.modelopt.recipe_choices import recipe_format, stored_settings
from fuseq.options import QuantizeOptions
from fuseq.quantizing import Quantized


def open_checkpoint(path: Path, options: DeployOptions) -> tuple[ir.Model, Checkpoint] | None:
    """Export the float model of a ModelOpt checkpoint; None where ``path`` is none.

    Raises:
        MissingExtraError: torch is not installed.
        OptionError: A plan is given as well.
        FuseqError: The checkpoint cannot be read, or its module must be given from Python.
    """
    if not is_checkpoint(path):
        return None
    if options.plan is not None:
        raise OptionError(
            f"{path}: a ModelOpt checkpoint brings its own ranges, --plan-in a plan for others; "
            "give one of the two."
        )
    try:
        from fuseq.torch.load_modelopt import export_modelopt  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "torch") from error
    exported = export_modelopt(path)
    notes = (*exported.notes, *exported.checkpoint.notes)
    return exported.model, dataclasses.replace(exported.checkpoint, notes=notes)


def with_its_format(options: DeployOptions, checkpoint: Checkpoint) -> DeployOptions:
    """The options with the checkpoint's format: its ranges are those of one format."""
    name = recipe_format(stored_settings(checkpoint))
    return dataclasses.replace(options, quantize=dataclasses.replace(options.quantize, format=name))


def quantize_checkpoint(
    model: ir.Model,
    checkpoint: Checkpoint,
    output: Path,
    *,
    options: QuantizeOptions,
    calib: Source,
    report: Callable[[str, int, int | None], None],
) -> Quantized:
    """Apply a checkpoint's ranges to its float model and write the quantized ONNX file.

    Data gives the ranges that the checkpoint lacks, and says what must stay FP32.

    Raises:
        OptionError: An option would change weights that the checkpoint's ranges belong to.
        FuseqError: As :func:`fuseq.modelopt.importing.plan_checkpoint`.
    """
    _check_weights_stay(options)
    job = checkpoint_job(model, checkpoint, options)
    fixed = plan_checkpoint(job, checkpoint, calib=calib, report=report)
    save(fixed.model, output)
    return Quantized(
        fixed.model, fixed.plan, fixed.scales, fixed.float_engine, fixed.engine, fixed.notes, job
    )


def _check_weights_stay(options: QuantizeOptions) -> None:
    changing = {
        "--rounding gptq": options.rounding != "nearest",
        "--bias-correction": options.bias_correction,
        "--equalize": options.equalize,
        "--smooth": options.smooth is not None,
    }
    for name, is_given in changing.items():
        if is_given:
            raise OptionError(
                f"{name} changes weights, and a ModelOpt checkpoint's scales belong to the weights "
                "that it has; leave the option out."
            )
