"""Run calibration data through the float model and find the range of every tensor that a plan names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.calibration.collectors import Chooser, chooser_named, max_range
from fuseq.calibration.measure import Measured, measure
from fuseq.calibration.passes_over_data import Progress, Workers
from fuseq.calibration.ranges import Problem, Range
from fuseq.errors import CalibrationError
from fuseq.formats import Format
from fuseq.model import FLOAT_TYPES, input_specs

_NAMES_IN_NOTE = 5


@dataclasses.dataclass(frozen=True)
class Collected:
    """What calibration found.

    Attributes:
        ranges: Range of each tensor asked for, as the method clips it. ``range.problem`` tells why
            a tensor must stay float: it is always 0, was never seen, or is not finite.
        magnitudes: If asked for, the unclipped range of every float tensor of the main graph.
        batches: Number of batches.
        notes: Sentences for the user.
    """

    ranges: Mapping[str, Range]
    magnitudes: Mapping[str, Range]
    batches: int
    notes: tuple[str, ...]


def collect(
    model: ir.Model,
    tensors: Iterable[str],
    source: Source,
    method: str = "max",
    *,
    formats: Mapping[str, Format],
    all_tensors: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Collected:
    """Find the range to keep of every tensor, in one pass over the data.

    Statistics are computed inside the graph; of a batch only its results come back. All methods
    but ``max`` need histograms, which take 9 ns more for each element of ``tensors`` on one core.

    Args:
        model: FP32, FP16 or BF16, of any size; it is not changed. It runs in FP32.
        tensors: Names of float values of the main graph.
        source: Batches that fit the model.
        method: One of ``METHODS``; ``percentile:99.9`` names the percentile too.
        formats: Number format by tensor name.
        all_tensors: Also give the magnitude of every float tensor, which costs up to half as much
            again, because ONNX Runtime cannot fuse what is looked at.
        progress: Called after each batch.
        threads: Threads in all; None is one for each processor of this process.

    Raises:
        CalibrationError: No data, data that does not fit, or an input that is 0 throughout.
        ModelError: ONNX Runtime cannot open the model.
        OptionError: Unknown method.
    """
    chooser = chooser_named(method)
    names = list(dict.fromkeys(tensors))
    found = measure(
        model, names, source, count=chooser is not None, all_tensors=all_tensors,
        progress=progress, workers=Workers.of(threads),
    )  # fmt: skip
    _refuse_zero_inputs(model, names, found, source)

    ranges = {name: _chosen(found, name, formats[name], chooser) for name in names}
    assumed = _assume_unit_ranges(ranges, formats)
    return Collected(
        ranges,
        {name: found.ranges[name] for name in found.float_names},
        source.length or 0,
        (*source.notes, *found.notes, *assumed, *_problem_notes(ranges)),
    )


def _chosen(found: Measured, name: str, fmt: Format, chooser: Chooser | None) -> Range:
    histogram = found.histograms.get(name)
    if chooser is None or histogram is None:
        return max_range(found.ranges[name], fmt)
    return chooser(histogram, fmt)


def collect_magnitudes(
    model: ir.Model,
    source: Source,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
) -> dict[str, Range]:
    """Range of every float tensor of the main graph, for the choice of FP16.

    Raises:
        CalibrationError: No data, or data that does not fit.
        ModelError: ONNX Runtime cannot open the model.
    """
    found = collect(
        model, (), source, formats={}, all_tensors=True, progress=progress, threads=threads
    )
    return dict(found.magnitudes)


def _refuse_zero_inputs(
    model: ir.Model, names: Iterable[str], found: Measured, source: Source
) -> None:
    """Refuse float inputs that are 0 throughout, if they are to be quantized or no other is not 0.

    Some inputs are rightly 0 (a first state, a mask); all of them together are no data.
    """
    inputs = [spec.name for spec in input_specs(model) if spec.dtype in FLOAT_TYPES]
    zero = [name for name in inputs if found.ranges[name].problem is Problem.ZERO]
    if zero and (len(zero) == len(inputs) or set(zero) & set(names)):
        raise CalibrationError(
            f"calibration data is all 0: input {', '.join(map(repr, zero))} of {source.description} "
            "has no other value; give real samples."
        )


def _assume_unit_ranges(ranges: dict[str, Range], formats: Mapping[str, Format]) -> list[str]:
    """Give tensors that are always 0 the range [-1, 1], in place, in asymmetric formats.

    Kernels of such formats need integers on both sides, so a tensor left in float would cost
    conversions in the middle of an island. Any scale stores 0 exactly; the note names the tensors.
    """
    names = [
        name
        for name, span in ranges.items()
        if span.problem is Problem.ZERO and not formats[name].symmetric
    ]
    ranges.update(dict.fromkeys(names, Range(-1.0, 1.0)))
    if not names:
        return []
    return [f"always 0 in calibration, so its range is taken as -1 to 1: {_shown(names)}."]


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_IN_NOTE} more" if len(names) > _NAMES_IN_NOTE else ""
    return ", ".join(map(repr, names[:_NAMES_IN_NOTE])) + more


def _problem_notes(ranges: Mapping[str, Range]) -> list[str]:
    """One sentence for each kind of problem."""
    notes = []
    for problem in Problem:
        names = [name for name, span in ranges.items() if span.problem is problem]
        if names:
            notes.append(
                f"{problem.value} in calibration, so it has no scale and stays float: "
                f"{_shown(names)}."
            )
    return notes
