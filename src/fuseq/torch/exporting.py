"""The third word: export a prepared module as the file that ``fuseq quantize`` would write."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import torch
from torch import nn

from fuseq.calibration.bias import bias_scales
from fuseq.calibration.scales import Scale, Scales
from fuseq.calibration.tensor_scales import constant_scales
from fuseq.errors import PlanError
from fuseq.model import save
from fuseq.quantizing import Quantized, apply_plan, check_output, sign
from fuseq.torch.points import WeightPoint
from fuseq.torch.prepared import Prepared, prepared_of
from fuseq.torch.state import State
from fuseq.torch.weights import kept_weight_name


def export(
    prepared: nn.Module,
    path: str | os.PathLike[str] | None,
    *,
    dynamic_shapes: Any = None,
) -> Quantized:
    """Write the float graph with the weights as they are now, and the plan with its scales applied.

    Weights are stored in the format behind DequantizeLinear alone, activations have one pair for all
    planned readers, and what stays float has the precision of the options.

    Args:
        prepared: A calibrated module, trained or not, in train or eval mode.
        path: ONNX file to write; None writes nothing.
        dynamic_shapes: As ``torch.export.export`` takes it; None keeps the axes that ``prepare``
            made dynamic.

    Returns:
        Model, plan and scales; no engine, as nothing is compiled again.

    Raises:
        PlanError: The module is not prepared or not calibrated.
        ModelError: torch.export refused the module, or the file cannot be written.
    """
    found = prepared_of(prepared)
    if found.plan.tensors and not found.state.places:
        raise PlanError(
            f"{type(found.module).__name__} has no scales; call fuseq.torch.calibrate(prepared, "
            "loader) before exporting it."
        )
    check_output(found.job.model, path)
    if dynamic_shapes is not None:
        found.refresh(dataclasses.replace(found.inputs, dynamic_shapes=dynamic_shapes))
    job, plan = found.float_job(), found.plan
    scales = current_scales(found)
    model, notes = apply_plan(job, plan, scales)
    sign(model)
    if path is not None:
        save(model, path)
    kept = Scales({group: scales[group] for group in plan.groups()})
    all_notes = tuple(dict.fromkeys((*found.notes, *notes)))
    return Quantized(model, plan, kept, None, None, all_notes, job)


def current_scales(prepared: Prepared) -> dict[str, Scale]:
    """Scales by group as the export stores them: kept ones as they are now, others from the weights.

    Raises:
        CalibrationError: A weight is NaN or infinite.
    """
    job, plan, state = prepared.float_job(), prepared.plan, prepared.state
    scales = constant_scales(plan, job.model, job.precision)
    for group, entries in plan.groups().items():
        entry = entries[0]
        if entry.kind == "activation":
            zero = state.zero_points.get(group)
            zero_point = None if zero is None else np.asarray(zero, dtype=np.int32)
            scales[group] = Scale(_array(state, group), zero_point, entry.format)
    for point in (call.weight for call in prepared.points.calls.values()):
        if point is None:
            continue
        learned = _learned(state, point)
        if learned is not None:
            axis = scales[point.group].axis
            scales[point.group] = Scale(learned, None, point.format.name, axis)
    return {**scales, **bias_scales(plan, scales, job.model)}


def _learned(state: State, point: WeightPoint) -> np.ndarray | None:
    """A learned weight scale; the parts of a joined weight in the order in which they are joined."""
    if not point.per_channel:
        return _array(state, point.group) if point.group in state.places else None
    names = [kept_weight_name(point.group, member) for member in point.members]
    if not all(name in state.places for name in names):
        return None
    return np.concatenate([_array(state, name, (-1,)) for name in names])


def _array(state: State, place: str, shape: tuple[int, ...] = ()) -> np.ndarray:
    with torch.no_grad():
        array: np.ndarray = state.scale(place, shape).cpu().numpy()
    return array
