"""One trial as a task for any process or machine: everything it needs, small enough to send."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fuseq.calibration.bias import bias_scales
from fuseq.calibration.ranges import Range
from fuseq.calibration.scales import Scale
from fuseq.calibration.tensor_scales import activation_scales, constant_scales
from fuseq.errors import ModelError, TargetError
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan, QuantizedTensor
from fuseq.planning import Job, compile_quantized, open_job
from fuseq.quantizing import smoothed
from fuseq.trials import cache
from fuseq.trials.keys import plan_key
from fuseq.trials.outcome import Outcome


@dataclasses.dataclass(frozen=True)
class Workload:
    """What a search's trials share.

    Attributes:
        model_path: The float ONNX file; every worker must see it under this path.
        stamp: Its size in bytes and time of change, nanoseconds, when the search opened it.
        options: The user's choices.
        ranges: Range by tensor name, of every tensor that a trial may quantize.
        magnitudes: Largest magnitude by tensor name, for FP32 islands.
        digest: Hash of all that decides an engine besides the plan (:mod:`fuseq.trials.keys`).
        cache: Folder of finished trials.
        maxima: Largest magnitudes by channel, float64 as bytes, of what ``--smooth`` moves.
    """

    model_path: str
    stamp: tuple[int, int]
    options: QuantizeOptions
    ranges: Mapping[str, Range]
    magnitudes: Mapping[str, float]
    digest: str
    cache: str
    maxima: tuple[tuple[str, bytes], ...] = ()


def stamp_of(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Size in bytes and time of change of a file, nanoseconds."""
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


def run_trial(workload: Workload, plan: Plan) -> Outcome:
    """Compile one plan, or read what compiling it gave; runs in a worker.

    Raises:
        ModelError: The model's file is gone or has changed since the search began.
    """
    return cache.once(
        Path(workload.cache), plan_key(workload.digest, plan), lambda: _compile(workload, plan)
    )


def scales_of(
    plan: Plan, job: Job, ranges: Mapping[str, Range], weights: WeightScales | None = None
) -> dict[str, Scale]:
    """Scales by group of weights, activations and biases of a plan."""
    weights = weights or WeightScales({})
    scales = {**weights.of(plan, job), **activation_scales(plan, ranges, job.precision)}
    return {**scales, **bias_scales(plan, scales, job.model)}


@dataclasses.dataclass(frozen=True)
class WeightScales:
    """Weight scales that were computed already: plans of one search share nearly all of them."""

    known: dict[tuple[object, ...], Scale]

    def of(self, plan: Plan, job: Job) -> dict[str, Scale]:
        """Scales by group of the plan's weights."""
        found: dict[str, Scale] = {}
        missing: list[QuantizedTensor] = []
        keys = {
            group: _weight_key(entries)
            for group, entries in plan.groups().items()
            if entries[0].kind == "weight"
        }
        for group, entries in plan.groups().items():
            if group in keys and keys[group] in self.known:
                found[group] = self.known[keys[group]]
            elif group in keys:
                missing += entries
        if missing:
            part = dataclasses.replace(plan, tensors=tuple(missing))
            fresh = constant_scales(part, job.model, job.precision)
            self.known.update((keys[group], scale) for group, scale in fresh.items())
            found.update(fresh)
        return found


def _weight_key(entries: list[QuantizedTensor]) -> tuple[object, ...]:
    names = tuple(sorted({entry.tensor for entry in entries}))
    return (entries[0].group, entries[0].format, entries[0].axis, names)


def open_workload(workload: Workload) -> tuple[Job, WeightScales]:
    """The job with its magnitudes, and the weight scales known so far; opened once a process.

    Raises:
        ModelError: The model's file is gone or has changed since the search began.
    """
    job, weights = _open(
        workload.model_path, workload.stamp, _options_text(workload.options), workload.digest,
        workload.maxima,
    )  # fmt: skip
    return dataclasses.replace(job, magnitudes=workload.magnitudes), weights


def _compile(workload: Workload, plan: Plan) -> Outcome:
    job, weights = open_workload(workload)
    started = time.perf_counter()
    try:
        trial = compile_quantized(job, plan, scales_of(plan, job, workload.ranges, weights))
    except TargetError as refusal:
        return Outcome(None, {}, str(refusal), time.perf_counter() - started)
    seconds = time.perf_counter() - started
    return Outcome(trial.engine, dict(trial.served), "", seconds)


@functools.lru_cache(maxsize=1)
def _open(
    path: str,
    stamp: tuple[int, int],
    options: str,
    digest: str,
    maxima: tuple[tuple[str, bytes], ...],
) -> tuple[Job, WeightScales]:
    """Open the model once a process; ``digest`` separates searches of one file."""
    del digest
    if not Path(path).is_file() or stamp_of(path) != stamp:
        raise ModelError(
            f"{path}: is gone or has changed since the search began; workers need the same file "
            "under the same path. Start again."
        )
    job = open_job(path, _options_from(options))
    return smoothed(job, {name: np.frombuffer(data) for name, data in maxima}), WeightScales({})


def _options_text(options: QuantizeOptions) -> str:
    return json.dumps(dataclasses.asdict(options), sort_keys=True)


def _options_from(text: str) -> QuantizeOptions:
    data = json.loads(text)
    data["exclude"], data["include"] = tuple(data["exclude"]), tuple(data["include"])
    data["shapes"] = {name: tuple(shape) for name, shape in data["shapes"].items()}
    return QuantizeOptions(**data)


__all__ = ["WeightScales", "Workload", "run_trial", "scales_of", "stamp_of"]
