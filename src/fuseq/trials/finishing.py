"""The model that a search hands out: the best plan applied, its weights and biases refined if asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from fuseq.calibration.scales import Scale, Scales
from fuseq.evaluate.running import run_batches
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.passes.set_constants import set_constants
from fuseq.placement.plan import Plan
from fuseq.planning import Report
from fuseq.quantizing import apply_plan, refined_values, sign
from fuseq.trials.accuracy import load_data
from fuseq.trials.constraint import Constraint, Outputs
from fuseq.trials.prepare import Prepared
from fuseq.trials.workload import scales_of


@dataclasses.dataclass(frozen=True)
class Guard:
    """What the finished model must still keep.

    Attributes:
        constraint: The measure.
        bar: The least allowed.
        exact: The float model's outputs.
        data: File of samples.
    """

    constraint: Constraint
    bar: float
    exact: Outputs
    data: str


def finished(
    prepared: Prepared, plan: Plan, guard: Guard | None, report: Report
) -> tuple[ir.Model, Scales, tuple[str, ...]]:
    """Apply a plan with the rounding and the biases that the options ask for.

    Biases are corrected after the choice; where the corrected model falls below the bar that the
    chosen plan kept, they stay as they were.

    Returns:
        The typed model, the scales of its groups, and notes.

    Raises:
        CalibrationError: The calibration data cannot be read again.
    """
    job = prepared.job
    scales = scales_of(plan, job, prepared.ranges)
    refined = refined_values(job, plan, scales, prepared.source, report)
    values, notes = refined.values, refined.notes
    if guard is not None and job.options.bias_correction and values:
        score = _score(prepared, plan, scales, values, guard)
        measure = f"{guard.constraint.measure} {score:.5f} with corrected biases"
        if score >= guard.bar:
            notes = (*notes, f"{measure}.")
        else:
            notes = (*notes, f"{measure} misses {guard.bar:.5f}: biases stay as they were.")
            weights = {entry.tensor for entry in plan.tensors if entry.kind == "weight"}
            values = {name: array for name, array in values.items() if name in weights}
    model, typing_notes = apply_plan(job, plan, scales, values)
    sign(model)
    used = {group: scales[group] for group in plan.groups() if group in scales}
    return model, Scales(used), (*notes, *typing_notes)


def _score(
    prepared: Prepared,
    plan: Plan,
    scales: Mapping[str, Scale],
    values: Mapping[str, np.ndarray],
    guard: Guard,
) -> float:
    model = prepared.job.model.clone()
    set_constants(model, values)
    insert_qdq(model, plan, scales)
    parts = list(run_batches(model, load_data(Path(guard.data)), optimized=False))
    near = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return guard.constraint.score(guard.exact, near)
