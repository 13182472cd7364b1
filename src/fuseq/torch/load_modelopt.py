"""A ModelOpt checkpoint as a prepared module, or straight as the quantized ONNX file that it becomes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from fuseq.errors import ModelError
from fuseq.fixing import Fixed
from fuseq.model import save
from fuseq.modelopt.checkpoint import Checkpoint, read_checkpoint
from fuseq.modelopt.importing import plan_checkpoint
from fuseq.modelopt.names import renamed
from fuseq.modelopt.recipe_choices import recipe_format, stored_settings
from fuseq.options import QuantizeOptions
from fuseq.planning import Report, silent
from fuseq.quantizing import check_output
from fuseq.torch.capture import capture
from fuseq.torch.inputs import inputs_of
from fuseq.torch.prepared import open_prepared, prepared_of
from fuseq.torch.preparing import keep_scales, prepare
from fuseq.torch.state import SCALES
from fuseq.torch.transformers_folder import example_inputs_of, model_of_folder

Module = TypeVar("Module", bound=nn.Module)

_LISTED = 4


def load_modelopt(
    model: Module,
    path: str | os.PathLike[str],
    example_inputs: Any = None,
    *,
    options: QuantizeOptions | None = None,
    dynamic_shapes: Any = "batch",
    calib: object | None = None,
    report: Report = silent,
) -> Module:
    """Load a checkpoint that ModelOpt made into ``model`` and prepare it, with the ranges it has.

    The float weights go into ``model`` in place: what was stored as FP8 or INT8 is multiplied by its
    scale, so that the engine gets the stored bits back. The ranges of the checkpoint become scales;
    the pairs stand where the target's kernels need them
    (:func:`fuseq.modelopt.importing.plan_checkpoint`). The result is as after
    ``fuseq.torch.calibrate``: it fake-quantizes, can be trained on, explained and exported.

    Args:
        model: The float module that the checkpoint was made from, without ModelOpt's quantizers; its
            weights are overwritten, and it is prepared in place.
        path: File of ``mto.save``, Hugging Face folder with ``modelopt_state.pth``, or folder of the
            unified export with ``hf_quant_config.json``. No code in it is executed.
        example_inputs: As for ``fuseq.torch.prepare``; None for a model of transformers with one input.
        options: Target, policy and the rest; the format is the checkpoint's.
        dynamic_shapes: As for ``fuseq.torch.prepare``.
        calib: Data for pairs that the checkpoint has no range for, as for :func:`fuseq.quantize`.
        report: Progress.

    Returns:
        ``model``, prepared.

    Raises:
        ModelError: The checkpoint cannot be read or is one of another architecture.
        OptionError: It quantizes nothing in a format that fuseq has, or example inputs are needed.
        FuseqError: As :func:`fuseq.quantize`.
    """
    checkpoint, notes = _load(model, path)
    given = _given(model, example_inputs)
    chosen = _options(options, checkpoint)
    prepare(model, given, options=chosen, dynamic_shapes=dynamic_shapes, inplace=True)
    prepared = prepared_of(model)
    fixed = plan_checkpoint(prepared.job, checkpoint, calib=calib, report=report)
    prepared.given_plan, prepared.scales = True, dict(fixed.scales)
    prepared.notes = tuple(dict.fromkeys((*notes, *fixed.notes)))
    keep_scales(prepared, fixed.scales, learned=True, plan=fixed.plan)
    model.get_parameter(SCALES).requires_grad_(False)  # kept as ModelOpt found them, not learned
    return model


def modelopt_to_onnx(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    model: nn.Module | None = None,
    example_inputs: Any = None,
    options: QuantizeOptions | None = None,
    dynamic_shapes: Any = "batch",
    calib: object | None = None,
    report: Report = silent,
) -> Fixed:
    """Turn a ModelOpt checkpoint into a quantized ONNX file whose placement is mended for a target.

    Args:
        path: As for :func:`load_modelopt`.
        output: Where the quantized ONNX file goes; None writes nothing.
        model: The float module; None for a folder whose ``config.json`` names a class of transformers.
        example_inputs: As for :func:`load_modelopt`.
        options: Target, policy and the rest; the format is the checkpoint's.
        dynamic_shapes: As for ``fuseq.torch.prepare``.
        calib: Data for pairs that the checkpoint has no range for.
        report: Progress.

    Returns:
        Model, plan, scales, changes, and the engines with and without quantization.

    Raises:
        FuseqError: As :func:`load_modelopt`, or ``output`` cannot be written.
    """
    module = model if model is not None else model_of_folder(path)
    checkpoint, notes = _load(module, path)
    inputs = inputs_of(module, _given(module, example_inputs), dynamic_shapes)
    _, job = open_prepared(module, inputs, _options(options, checkpoint))
    check_output(job.model, output)
    fixed = plan_checkpoint(job, checkpoint, calib=calib, report=report)
    if output is not None:
        save(fixed.model, output)
    return dataclasses.replace(fixed, notes=tuple(dict.fromkeys((*notes, *fixed.notes))))


@dataclasses.dataclass(frozen=True)
class ExportedCheckpoint:
    """A checkpoint beside the float graph that it belongs to.

    Attributes:
        model: Float ONNX with the checkpoint's weights, as the exporter writes it.
        checkpoint: Its ranges and recipe, by the names of the module;
            :func:`fuseq.modelopt.importing.apply_checkpoint` puts both together for a target.
        notes: What the user should know.
    """

    model: ir.Model
    checkpoint: Checkpoint
    notes: tuple[str, ...]


def export_modelopt(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = "batch",
) -> ExportedCheckpoint:
    """Export the float model of a ModelOpt checkpoint: what ``fuseq quantize`` would start from.

    Args:
        path: As for :func:`load_modelopt`.
        model: The float module; None for a folder whose ``config.json`` names a class of transformers.
        example_inputs: As for :func:`load_modelopt`.
        dynamic_shapes: As for ``fuseq.torch.prepare``.

    Raises:
        FuseqError: As :func:`load_modelopt`.
    """
    module = model if model is not None else model_of_folder(path)
    checkpoint, notes = _load(module, path)
    captured = capture(module, inputs_of(module, _given(module, example_inputs), dynamic_shapes))
    return ExportedCheckpoint(captured.model, checkpoint, notes)


def _given(module: nn.Module, example_inputs: Any) -> Any:
    return example_inputs if example_inputs is not None else example_inputs_of(module)


def _load(module: nn.Module, path: str | os.PathLike[str]) -> tuple[Checkpoint, tuple[str, ...]]:
    checkpoint = renamed(read_checkpoint(path), module.state_dict().keys())
    return checkpoint, load_weights(module, checkpoint)


def _options(options: QuantizeOptions | None, checkpoint: Checkpoint) -> QuantizeOptions:
    name = recipe_format(stored_settings(checkpoint))
    return dataclasses.replace(options or QuantizeOptions(), format=name)


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Copy a checkpoint's weights into ``model`` in place; returns what did not belong to it.

    Raises:
        ModelError: A parameter of the model is missing in the checkpoint or has another shape;
            nothing is copied then.
    """
    own = dict(model.state_dict())
    _check_shapes(model, own, checkpoint)
    with torch.no_grad():
        for name, tensor in own.items():
            array = checkpoint.weights.get(name)
            if array is not None:
                tensor.copy_(_tensor(array))
    left = sorted(set(checkpoint.weights) - set(own))
    if not left:
        return ()
    shown = ", ".join(left[:_LISTED]) + (", ..." if len(left) > _LISTED else "")
    return (f"{checkpoint.origin}: {len(left)} tensors are not the model's: {shown}.",)


def _check_shapes(
    model: nn.Module, own: Mapping[str, torch.Tensor], checkpoint: Checkpoint
) -> None:
    loaded = {t.data_ptr() for name, t in own.items() if name in checkpoint.weights}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in checkpoint.weights and parameter.data_ptr() not in loaded:
            raise ModelError(
                f"{checkpoint.origin}: has no {name}, which the model needs; give the model that the "
                "checkpoint was made from."
            )
    for name, tensor in own.items():
        array = checkpoint.weights.get(name)
        if array is not None and array.shape != tuple(tensor.shape):
            raise ModelError(
                f"{checkpoint.origin}: {name} has shape {list(array.shape)}, the model wants "
                f"{list(tensor.shape)}; give the model that the checkpoint was made from."
            )


def _tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor with the values of ``array``; types that torch cannot take from NumPy pass float32."""
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        array = array.astype(np.float32)
    return torch.from_numpy(np.array(array, order="C"))
