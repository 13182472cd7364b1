"""Scales that FP16 would round keep every bit, where the target takes them and loses nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fuseq.calibration.scales import Scale
from fuseq.errors import TargetError
from fuseq.passes.found_scales import FoundScale
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.passes.wide_scales import float32_scales, widen_scales
from fuseq.placement.cells import Trial
from fuseq.planning import Job, Planned, Report, set_types

SLACK = 1.0005
"""Predicted time that FP32 scales may cost: rounding of the cost model's sums."""


def with_exact_scales(
    job: Job,
    planned: Planned,
    scales: Mapping[str, Scale],
    exact: Mapping[str, Scale],
    found: Sequence[FoundScale],
    report: Report,
) -> tuple[Planned, dict[str, Scale]]:
    """The plan with the file's FP32 scales, if its engine is as fast as with rounded ones.

    TensorRT-RTX 1.7.1 takes FP32 scales beside FP16 tensors: convolutions run as before, but a GEMM then
    writes FP32 (ViT-S FP8, batch 8: 658 MB of activations instead of 483), and both of its operands need
    scales of one type. So the whole model is compiled once more and judged.

    Args:
        job: The model.
        planned: With the trial that the plan was judged by.
        scales: Scales by group, as the tensors' type stores them.
        exact: The file's own scales, and those made of them, by group, float32.
        found: The file's scales; without one that rounding changes, nothing is tried.
        report: Progress.

    Returns:
        The plan and the scales of the result.
    """
    kept = {
        group: dataclasses.replace(scale, scale=exact[group].scale)
        for group, scale in scales.items()
        if group in exact and not np.array_equal(exact[group].scale, scale.scale)
    }
    in_file = {each.tensor for each in found}
    groups = planned.plan.groups()
    is_rounded = any(entry.tensor in in_file for group in kept for entry in groups.get(group, ()))
    is_wide = job.target.rules(job.options.format).wide_scales
    if planned.trial is None or not is_rounded or not is_wide or job.precision == "fp32":
        return planned, dict(scales)
    report("compile with the file's own scale bits", 0, None)
    chosen = {**scales, **kept}
    model = job.model.clone()
    served = insert_qdq(model, planned.plan, chosen)
    wide = float32_scales(model)
    notes = set_types(job, model)
    widen_scales(model, wide)
    try:
        engine = job.target.compile(model, job.profile)
    except TargetError:
        return planned, dict(scales)
    if engine.predicted_us > planned.trial.engine.predicted_us * SLACK:
        return planned, dict(scales)
    trial = Trial(planned.plan, engine, served, model, notes)
    return dataclasses.replace(planned, trial=trial), chosen
