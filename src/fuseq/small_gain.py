"""What a plan costs in closeness, told where it gains little time: nothing weighs the two unasked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from fuseq.calibration.batches import Source
from fuseq.evaluate.closeness import cosine
from fuseq.evaluate.running import run_batches
from fuseq.placement.measured_choice import FLOAT
from fuseq.planning import Job, Planned

SMALL_GAIN = 1.10
"""Below this the user should see both numbers: a tenth of the time may not be worth the rounding."""


def told_where_small(job: Job, planned: Planned, source: Source) -> Planned:
    """Add a note, and write it into the plan, where a measured plan is under :data:`SMALL_GAIN` times as
    fast as float; anything else is returned as it is.

    Args:
        job: The model, with the policy.
        planned: What timed runs chose.
        source: Calibration data; its first batch is run through both models.
    """
    measured = planned.plan.measurement
    if measured is None or planned.trial is None or job.options.policy == "full":
        return planned
    kept = next((one for one in measured.candidates if one.name == measured.chosen), None)
    batch = next(iter(source), None)
    if kept is None or kept.name == FLOAT or kept.speedup >= SMALL_GAIN or batch is None:
        return planned
    exact = next(iter(run_batches(job.model, [batch])))
    near = next(iter(run_batches(planned.trial.model, [batch])))
    found = _least_alike(exact, near)
    if found is None:
        return planned
    name, alike = found
    note = (
        f"a small gain: {kept.speedup:.2f} times as fast as float, and on one batch of the calibration data "
        f"the cosine of {name!r} to float's is {alike:.4f}. `--min-gain 10` keeps float where less than "
        "10 % is gained; `--method entropy` or mse may come closer."
    )
    plan = dataclasses.replace(planned.plan, notes=(*planned.plan.notes, note))
    trial = dataclasses.replace(planned.trial, plan=plan)
    return dataclasses.replace(planned, plan=plan, trial=trial, notes=(*planned.notes, note))


def _least_alike(
    exact: Mapping[str, np.ndarray], near: Mapping[str, np.ndarray]
) -> tuple[str, float] | None:
    """The float output that differs most, and the mean of its samples' cosines."""
    alike = {
        name: float(cosine(array, near[name]).mean())
        for name, array in exact.items()
        if array.dtype.kind == "f" and array.size and array.ndim and name in near
    }
    return min(alike.items(), key=lambda item: item[1]) if alike else None
