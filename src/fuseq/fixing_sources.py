"""Ranges of a plan's activations: the file's own, carried to other tensors, or measured on data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from fuseq.calibration.carried_ranges import Carried
from fuseq.calibration.image_presets import image_preset
from fuseq.calibration.kept_ranges import FileScales, kept_ranges
from fuseq.calibration.runner import Collected, collect
from fuseq.calibration.sources import open_source
from fuseq.formats import Format, format_named
from fuseq.placement.plan import Plan
from fuseq.planning import Job, Report


@dataclasses.dataclass(frozen=True)
class Sources:
    """Ranges of the plan's activations, and where they come from.

    Attributes:
        carried: Range by tensor, and how it is known.
        measured: Tensors whose range comes from calibration data.
        magnitudes: Largest magnitude by tensor, as far as data or the file's own scales tell.
        notes: What calibration said.
    """

    carried: Mapping[str, Carried]
    measured: frozenset[str]
    magnitudes: Mapping[str, float]
    notes: tuple[str, ...]


def find_sources(
    job: Job, plan: Plan, files: FileScales, calib: object | None, report: Report
) -> Sources:
    """Ranges from the file; from data where data is given and the file has none of their own."""
    activations = [e for e in plan.tensors if e.kind == "activation" and e.known_amax is None]
    formats = {entry.tensor: format_named(entry.format) for entry in activations}
    fmt = job.target.storage_formats(job.options.format)[0]
    carried = kept_ranges(formats, files, fmt)
    magnitudes = {name: each.range.amax for name, each in carried.items() if not each.how}
    if calib is None:
        return Sources(carried, frozenset(), magnitudes, ())
    wanted = [n for n in formats if n not in carried or carried[n].certainty != "same"]
    measured = _measure(job, {name: formats[name] for name in wanted}, calib, report)
    usable = {n: Carried(r) for n, r in measured.ranges.items() if r.problem is None}
    return Sources(
        {**carried, **usable},
        frozenset(usable),
        {name: span.amax for name, span in measured.magnitudes.items()} or magnitudes,
        measured.notes,
    )


def _measure(job: Job, formats: Mapping[str, Format], calib: object, report: Report) -> Collected:
    options = job.options
    source = open_source(
        calib,
        job.model,
        preset=image_preset(options.preset) if options.preset else None,
        limit=options.limit,
        shapes=job.profile.optimum,
        seed=options.seed,
    )
    return collect(
        job.model,
        formats,
        source,
        options.method,
        formats=formats,
        all_tensors=job.precision == "fp16",
        progress=functools.partial(report, "calibrate"),
    )
