"""What every search and every sensitivity run begins with: the model opened and calibrated."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from fuseq.calibration.batches import Source
from fuseq.calibration.image_presets import image_preset
from fuseq.calibration.ranges import Problem, Range
from fuseq.calibration.runner import Collected, collect
from fuseq.calibration.sources import open_source
from fuseq.options import QuantizeOptions
from fuseq.planning import Job, Report, everything, open_job
from fuseq.quantizing import smoothed, smoothing_maxima
from fuseq.trials.cache import open_folder
from fuseq.trials.keys import job_digest
from fuseq.trials.points import Points, points_of
from fuseq.trials.workload import Workload, stamp_of


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A calibrated job.

    Attributes:
        job: The model, with magnitudes.
        points: What may be quantized, less what has no usable range.
        ranges: Range by tensor name.
        source: The calibration data.
        workload: What trials in other processes need.
        notes: What the user should know.
    """

    job: Job
    points: Points
    ranges: Mapping[str, Range]
    source: Source
    workload: Workload
    notes: tuple[str, ...]


def prepare(
    model: str | os.PathLike[str],
    calib: object,
    options: QuantizeOptions,
    cache: Path,
    report: Report,
) -> Prepared:
    """Open ``model``, find what may be quantized, and calibrate all of it in one pass.

    Raises:
        FuseqError: The model, the data or the target cannot be used.
    """
    stamp = stamp_of(model) if Path(model).is_file() else (0, 0)
    job = open_job(model, options)
    open_folder(cache)  # after the model was found good: a typing error leaves no folder behind
    source = source_for(job, calib)
    maxima = smoothing_maxima(job, source)
    job = smoothed(job, maxima)
    points = points_of(job, everything(job))
    names = points.activations()
    fmt = job.target.storage_formats(options.format)[0]
    found = collect(
        job.model, names, source, options.method,
        formats=dict.fromkeys(names, fmt), all_tensors=job.precision == "fp16",
        progress=lambda done, total: report("calibrate", done, total),
    )  # fmt: skip
    magnitudes = {name: span.amax for name, span in found.magnitudes.items()}
    job = dataclasses.replace(job, magnitudes=magnitudes)
    bad = {name: _problem(found, name) for name in names}
    spans = ((name, span.minimum, span.maximum) for name, span in found.ranges.items())
    workload = Workload(
        model_path=str(Path(model).resolve()),
        stamp=stamp,
        options=options,
        ranges=found.ranges,
        magnitudes=magnitudes,
        digest=job_digest(job, spans),
        cache=str(cache.resolve()),
        maxima=tuple((name, array.tobytes()) for name, array in maxima.items()),
    )
    usable = points.without_tensors({name: why for name, why in bad.items() if why})
    return Prepared(job, usable, found.ranges, source, workload, (*job.notes, *found.notes))


def source_for(job: Job, data: object) -> Source:
    """Open data for the job's model, prepared as its options say."""
    options = job.options
    return open_source(
        data,
        job.model,
        preset=image_preset(options.preset) if options.preset else None,
        limit=options.limit,
        shapes=job.profile.optimum,
        seed=options.seed,
    )


def _problem(found: Collected, name: str) -> str:
    span = found.ranges.get(name)
    problem = Problem.NEVER_SEEN if span is None else span.problem
    return problem.value if problem is not None else ""
