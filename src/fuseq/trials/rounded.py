"""Weights rounded by second order, kept beside the trials: plans of one search share nearly all of them.

How a weight is rounded depends on the float model, the calibration data and its own scale alone, so
each is rounded once, whatever plan it is in.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fuseq.calibration.refine import refine
from fuseq.placement.plan import Plan, QuantizedTensor
from fuseq.planning import Report
from fuseq.trials.arrays import read_arrays, write_arrays
from fuseq.trials.prepare import Prepared
from fuseq.trials.workload import Workload, scales_of


def store_rounded(prepared: Prepared, plans: Sequence[Plan], report: Report) -> None:
    """Round the weights of ``plans`` that were not rounded before, if the options ask for it.

    Raises:
        CalibrationError: The calibration data cannot be read again.
    """
    workload = prepared.workload
    if workload.options.rounding != "gptq":
        return
    missing: dict[Path, tuple[Plan, list[QuantizedTensor]]] = {}
    for plan in plans:
        for entries in _weights(plan):
            file = _file(workload, entries)
            if not file.is_file():
                missing.setdefault(file, (plan, entries))
    while missing:
        taken = _apart(missing)
        entries = [entry for file in taken for entry in missing[file][1]]
        some = dataclasses.replace(missing[taken[0]][0], tensors=tuple(entries))
        scales = scales_of(some, prepared.job, prepared.ranges)
        found = refine(
            prepared.job.model, some, scales, prepared.source,
            second_order=True, bias_correction=False,
            progress=lambda done, total: report("round", done, total),
        ).values  # fmt: skip
        for file in taken:
            names = {entry.tensor for entry in missing.pop(file)[1]}
            write_arrays(file, {name: found[name] for name in names if name in found})


def rounded_values(workload: Workload, plan: Plan) -> dict[str, np.ndarray]:
    """Values by weight of a plan, of those that :func:`store_rounded` kept; the others are not there
    and keep rounding to nearest."""
    found: dict[str, np.ndarray] = {}
    if workload.options.rounding == "gptq":
        for entries in _weights(plan):
            found.update(read_arrays(_file(workload, entries)) or {})
    return found


def _weights(plan: Plan) -> list[list[QuantizedTensor]]:
    return [entries for entries in plan.groups().values() if entries[0].kind == "weight"]


def _apart(missing: dict[Path, tuple[Plan, list[QuantizedTensor]]]) -> list[Path]:
    """Files whose weights differ: one weight is rounded in one format at a time."""
    names: set[str] = set()
    groups: set[str] = set()
    taken = []
    for file, (_, entries) in missing.items():
        own = {entry.tensor for entry in entries}
        if names.isdisjoint(own) and entries[0].group not in groups:
            names |= own
            groups.add(entries[0].group)
            taken.append(file)
    return taken


def _file(workload: Workload, entries: Sequence[QuantizedTensor]) -> Path:
    words = [workload.digest, entries[0].group, entries[0].format, str(entries[0].axis)]
    words += sorted({entry.tensor for entry in entries})
    name = hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]
    return Path(workload.cache) / f"rounded-{name}.npz"
