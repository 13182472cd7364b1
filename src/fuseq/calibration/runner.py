"""Run calibration data through the float model and find the range of every tensor that a plan names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.calibration.collectors import Chooser, chooser_named, max_range
from fuseq.calibration.graph_statistics import (
    FLOATS,
    RangeOutputs,
    add_histograms,
    add_ranges,
    add_sums,
)
from fuseq.calibration.histogram import BINS, Histogram
from fuseq.calibration.observed import resolve, values_by_name
from fuseq.calibration.passes_over_data import Progress, Workers, run_pass
from fuseq.calibration.ranges import EMPTY, Problem, Range
from fuseq.calibration.session import open_session
from fuseq.calibration.upcast import upcast
from fuseq.errors import CalibrationError
from fuseq.formats import Format
from fuseq.model import FLOAT_TYPES, input_specs

_SCATTER_ADDS_FROM_OPSET = 16

_NAMES_IN_NOTE = 5

_FINEST_AMAX = 1e-30
"""Below it, bins in float32 would be too narrow; such a range is kept as it is."""


@dataclasses.dataclass(frozen=True)
class Collected:
    """What calibration found.

    Attributes:
        ranges: Range of each tensor asked for, as the method clips it. ``range.problem`` tells why
            a tensor must stay float: it is always 0, was never seen, or is not finite.
        magnitudes: If asked for, the unclipped range of every float tensor of the main graph.
        batches: Number of batches read in one pass.
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
    """Find the range to keep of every tensor.

    ``max`` reads the data once. The other methods read it twice: ranges first, then histograms of
    2 x 2048 bins. Statistics are computed inside the graph; of a batch only its results come back.

    Args:
        model: FP32, FP16 or BF16, of any size; it is not changed. It runs in FP32.
        tensors: Names of float values of the main graph.
        source: Batches that fit the model, the same in each pass.
        method: One of ``METHODS``; ``percentile:99.9`` names the percentile too.
        formats: Number format by tensor name.
        all_tensors: Also give the magnitude of every float tensor, which costs about half as much
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
    steps = _Steps(source, 1 if chooser is None else 2, progress, Workers.of(threads))
    seen, magnitudes, notes = _see_ranges(model, names, steps, all_tensors)
    _refuse_zero_inputs(model, names, seen, source)
    ranges = {name: seen[name] for name in names}
    if chooser is None:
        ranges = {name: max_range(span, formats[name]) for name, span in ranges.items()}
    else:
        ranges = _choose(model, ranges, formats, chooser, steps)
    notes = [*source.notes, *notes, *_problem_notes(ranges)]
    return Collected(ranges, magnitudes, source.length or 0, tuple(notes))


def refine(
    model: ir.Model,
    seen: Mapping[str, Range],
    source: Source,
    method: str,
    *,
    formats: Mapping[str, Format],
    progress: Progress | None = None,
    threads: int | None = None,
) -> dict[str, Range]:
    """Choose ranges by ``method`` where an earlier :func:`collect` on the same data gave ``max``.

    This is the second pass of :func:`collect` alone, so that a plan can be cut down between them.

    Args:
        model: As in :func:`collect`.
        seen: Ranges of method ``max`` by tensor name.
        source: The same batches.
        method: One of ``METHODS``.
        formats: Number format of every tensor in ``seen``.
        progress: Called after each batch.
        threads: As in :func:`collect`.

    Raises:
        As :func:`collect`.
    """
    chooser = chooser_named(method)
    if chooser is None:
        return {name: max_range(span, formats[name]) for name, span in seen.items()}
    return _choose(model, seen, formats, chooser, _Steps(source, 1, progress, Workers.of(threads)))


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


@dataclasses.dataclass(frozen=True)
class _Steps:
    """What both passes share."""

    source: Source
    passes: int
    progress: Progress | None
    workers: Workers

    def report(self, number: int, done: int) -> None:
        """Tell the progress of pass ``number``, from 0."""
        if self.progress is not None:
            length = self.source.length
            before = number * (length or 0)
            self.progress(before + done, None if length is None else length * self.passes)


def _see_ranges(
    model: ir.Model, names: Sequence[str], steps: _Steps, all_tensors: bool
) -> tuple[dict[str, Range], dict[str, Range], list[str]]:
    """First pass: ranges by name, magnitudes by name, notes."""
    copy = _float32_copy(model)
    everything = _float_names(copy) if all_tensors else []
    inputs = [spec.name for spec in input_specs(copy) if spec.dtype in FLOATS]
    values = resolve([*names, *everything, *inputs], copy.graph)
    watched = list(dict.fromkeys(v for v in values.values() if v is not None and _is_activation(v)))
    outputs = [value for value in copy.graph.outputs if value.dtype in FLOATS]
    copy.graph.outputs.clear()
    sums = add_sums(copy, outputs)
    where = add_ranges(copy, watched)
    ranges, broken = _reduce(copy, where, sums, steps)
    notes = [
        f"the float model's output {outputs[index].name!r} holds NaN on this data; check the data's "
        "preparation, or the model."
        for index in sorted(broken)
    ]
    by_name = {name: EMPTY if v is None else ranges.get(v, EMPTY) for name, v in values.items()}
    return by_name, {name: by_name[name] for name in everything}, notes


def _reduce(
    copy: ir.Model, where: Mapping[ir.Value, RangeOutputs], sums: Sequence[str], steps: _Steps
) -> tuple[dict[ir.Value, Range], set[int]]:
    """Ranges by value, and the numbers of the outputs whose sum was NaN."""
    lows = [names.minimum for names in where.values() if names.minimum]
    highs = [names.maximum for names in where.values()]
    session = open_session(copy, steps.workers.threads)
    low = np.full(len(lows), np.inf)
    high = np.full(len(highs), -np.inf)
    broken: set[int] = set()
    report = functools.partial(steps.report, 0)
    for found in run_pass(session, [*lows, *highs, *sums], steps.source, steps.workers, report):
        numbers = np.array(found, dtype=np.float64)
        low = np.minimum(low, numbers[: low.size])
        high = np.maximum(high, numbers[low.size : low.size + high.size])
        broken.update(np.flatnonzero(np.isnan(numbers[low.size + high.size :])).tolist())
    lowest = dict(zip(lows, low.tolist(), strict=True))
    ranges = {}
    for (value, names), largest in zip(where.items(), high.tolist(), strict=True):
        smallest = lowest.get(names.minimum, min(0.0, largest))
        ranges[value] = (
            EMPTY if largest == -np.inf and not names.minimum else Range(smallest, largest)
        )
    return ranges, broken


def _choose(
    model: ir.Model,
    seen: Mapping[str, Range],
    formats: Mapping[str, Format],
    chooser: Chooser,
    steps: _Steps,
) -> dict[str, Range]:
    """Second pass: histograms of what has a range, and the method's choice for each tensor."""
    copy = _float32_copy(model)
    if (copy.opset_imports.get("") or 0) < _SCATTER_ADDS_FROM_OPSET:
        from fuseq.passes.opset import raise_opset  # noqa: PLC0415 (imports the converters)

        raise_opset(copy)
    copy.graph.outputs.clear()
    values = resolve(seen, copy.graph)
    wide = {
        value: seen[name]
        for name, value in values.items()
        if value is not None and seen[name].problem is None and seen[name].amax >= _FINEST_AMAX
    }
    histograms = _count(copy, wide, steps) if wide else {}

    @functools.cache
    def choice(value: ir.Value, fmt: Format) -> Range:
        return chooser(histograms[value], fmt)

    return {
        name: choice(value, formats[name]) if value is not None and value in wide else seen[name]
        for name, value in values.items()
    }


def _count(
    copy: ir.Model, wide: Mapping[ir.Value, Range], steps: _Steps
) -> dict[ir.Value, Histogram]:
    names = add_histograms(copy, {value: span.amax for value, span in wide.items()})
    session = open_session(copy, steps.workers.threads)
    counts = np.zeros((len(names), 2 * BINS), dtype=np.int64)
    report = functools.partial(steps.report, steps.passes - 1)
    for found in run_pass(session, list(names.values()), steps.source, steps.workers, report):
        counts += np.stack(found)
    return {
        value: Histogram(row[:BINS], _negative_counts(row), wide[value])
        for value, row in zip(names, counts, strict=True)
    }


def _negative_counts(row: np.ndarray) -> np.ndarray:
    """Bin k of the negative values stands at -k; bin 0 belongs to the positive ones."""
    negative = np.zeros(BINS, dtype=np.int64)
    negative[1:] = row[:BINS:-1]
    return negative


def _float32_copy(model: ir.Model) -> ir.Model:
    copy = model.clone()
    upcast(copy)
    return copy


def _float_names(model: ir.Model) -> list[str]:
    found = values_by_name(model.graph)
    return [
        name for name, value in found.items() if value.dtype in FLOATS and _is_activation(value)
    ]


def _is_activation(value: ir.Value) -> bool:
    """A float that no constant gives; an unknown dtype is float, because a plan named the value."""
    node = value.producer()
    is_constant = value.const_value is not None or (node is not None and node.op_type == "Constant")
    return not is_constant and (value.dtype is None or value.dtype in FLOATS)


def _refuse_zero_inputs(
    model: ir.Model, names: Sequence[str], seen: Mapping[str, Range], source: Source
) -> None:
    """Refuse float inputs that are 0 throughout, if they are to be quantized or no other is not 0.

    Some inputs are rightly 0 (a first state, a mask); all of them together are no data.
    """
    inputs = [spec.name for spec in input_specs(model) if spec.dtype in FLOAT_TYPES]
    zero = [name for name in inputs if seen[name].problem is Problem.ZERO]
    if zero and (len(zero) == len(inputs) or set(zero) & set(names)):
        raise CalibrationError(
            f"calibration data is all 0: input {', '.join(map(repr, zero))} of {source.description} "
            "has no other value; give real samples."
        )


def _problem_notes(ranges: Mapping[str, Range]) -> list[str]:
    """One sentence for each kind of problem."""
    notes = []
    for problem in Problem:
        names = [name for name, span in ranges.items() if span.problem is problem]
        if names:
            shown = ", ".join(map(repr, names[:_NAMES_IN_NOTE]))
            more = f" and {len(names) - _NAMES_IN_NOTE} more" if len(names) > _NAMES_IN_NOTE else ""
            notes.append(
                f"{problem.value} in calibration, so it has no scale and stays float: {shown}{more}."
            )
    return notes
