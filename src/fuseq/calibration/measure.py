"""Run data through a float model once and measure its tensors: ranges, and histograms if asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.calibration.graph_statistics import FLOATS, Outputs, add_statistics, add_sums
from fuseq.calibration.histogram import BINS, Counts, Histogram
from fuseq.calibration.observed import resolve, values_by_name
from fuseq.calibration.passes_over_data import Progress, Workers, run_pass
from fuseq.calibration.ranges import EMPTY, Range
from fuseq.calibration.session import open_session
from fuseq.calibration.upcast import upcast
from fuseq.model import input_specs

_SCATTER_ADDS_FROM_OPSET = 16


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the data showed.

    Attributes:
        ranges: True range by tensor name.
        histograms: By the names that were counted; a tensor without finite values has none.
        float_names: Every float tensor of the main graph, if all were measured.
        notes: Sentences for the user.
    """

    ranges: Mapping[str, Range]
    histograms: Mapping[str, Histogram]
    float_names: tuple[str, ...]
    notes: tuple[str, ...]


def measure(
    model: ir.Model,
    names: Collection[str],
    source: Source,
    *,
    count: bool,
    all_tensors: bool,
    progress: Progress | None,
    workers: Workers,
) -> Measured:
    """Measure the tensors called ``names``, and the model's float inputs.

    Args:
        model: Not changed; it runs in FP32.
        names: Values of the main graph; others count as never seen.
        source: Batches that fit the model; read once.
        count: Also make histograms of ``names``.
        all_tensors: Also measure the range of every other float tensor.
        progress: Called after each batch.
        workers: Threads.

    Raises:
        CalibrationError: No data, or data that the model cannot run on.
        ModelError: ONNX Runtime cannot open the model, or its opset cannot be raised.
    """
    copy = _float32_copy(model, scatter_adds=count)
    everything = _float_names(copy) if all_tensors else []
    inputs = [spec.name for spec in input_specs(copy) if spec.dtype in FLOATS]
    values = resolve([*names, *everything, *inputs], copy.graph)
    watched = list(dict.fromkeys(v for v in values.values() if v and _is_activation(v)))
    counted = {values[name] for name in names} if count else set()
    outputs = [value for value in copy.graph.outputs if value.dtype in FLOATS]
    copy.graph.outputs.clear()
    sums = add_sums(copy, outputs)
    where = add_statistics(copy, watched, {value for value in counted if value})
    state = _State.of(where, sums)
    if not state.wanted:
        _run_only(model, source, workers, progress)
        return Measured(dict.fromkeys(values, EMPTY), {}, (), ())
    session = open_session(copy, workers.threads)
    for found in run_pass(session, state.wanted, source, workers, progress):
        state.add(found)
    ranges, histograms = state.ranges(), state.histograms()
    return Measured(
        {name: EMPTY if v is None else ranges.get(v, EMPTY) for name, v in values.items()},
        {name: histograms[v] for name, v in values.items() if v in histograms},
        tuple(everything),
        tuple(_nan_note(outputs[index].name or "") for index in sorted(state.broken)),
    )


def _run_only(model: ir.Model, source: Source, workers: Workers, progress: Progress | None) -> None:
    """Run data through a model without float tensors: it may still not fit."""
    session = open_session(model.clone(), workers.threads)
    outputs = [value.name or "" for value in model.graph.outputs]
    for _ in run_pass(session, outputs, source, workers, progress):
        pass


@dataclasses.dataclass
class _State:
    """Statistics so far; nothing in it grows with the number of batches.

    Attributes:
        where: Output names by tensor.
        wanted: Outputs to ask for: minima, maxima, sums, factors, counts.
        low: float64, one a tensor that may be negative; ``high``: one a tensor.
        counts: By tensor.
        broken: Numbers of the model's outputs that held NaN.
    """

    where: Mapping[ir.Value, Outputs]
    wanted: list[str]
    low: np.ndarray
    high: np.ndarray
    counts: dict[ir.Value, Counts]
    broken: set[int]

    @staticmethod
    def of(where: Mapping[ir.Value, Outputs], sums: Sequence[str]) -> _State:
        lows = [names.minimum for names in where.values() if names.minimum]
        highs = [names.maximum for names in where.values()]
        factors = [names.factor for names in where.values() if names.factor]
        counts = [names.counts for names in where.values() if names.counts]
        return _State(
            where,
            [*lows, *highs, *sums, *factors, *counts],
            np.full(len(lows), np.inf),
            np.full(len(highs), -np.inf),
            {value: Counts() for value, names in where.items() if names.counts},
            set(),
        )

    def add(self, found: Sequence[np.ndarray]) -> None:
        """Add one batch's outputs, in the order of ``wanted``."""
        scalars = np.array(found[: len(found) - len(self.counts)], dtype=np.float64)
        lows, highs = self.low.size, self.low.size + self.high.size
        sums = scalars.size - len(self.counts)
        self.low = np.minimum(self.low, scalars[:lows])
        self.high = np.maximum(self.high, scalars[lows:highs])
        self.broken.update(np.flatnonzero(np.isnan(scalars[highs:sums])).tolist())
        vectors = found[scalars.size :]
        for counts, factor, signed in zip(
            self.counts.values(), scalars[sums:], vectors, strict=True
        ):
            if 0 < factor < np.inf:  # else the batch holds NaN or infinity: no bins fit it
                counts.add(signed, round(float(np.log2(BINS / factor))))

    def ranges(self) -> dict[ir.Value, Range]:
        """True ranges; a tensor of no elements is EMPTY."""
        lowest = iter(self.low.tolist())
        found = {}
        for (value, names), largest in zip(self.where.items(), self.high.tolist(), strict=True):
            smallest = next(lowest) if names.minimum else 0.0
            empty = largest == -np.inf and smallest in (0.0, np.inf)
            found[value] = EMPTY if empty else Range(smallest, largest)
        return found

    def histograms(self) -> dict[ir.Value, Histogram]:
        """Histograms of what has a finite range other than 0."""
        ranges = self.ranges()
        return {
            value: counts.histogram(ranges[value])
            for value, counts in self.counts.items()
            if ranges[value].problem is None
        }


def _float32_copy(model: ir.Model, scatter_adds: bool) -> ir.Model:
    copy = model.clone()
    upcast(copy)
    if scatter_adds and (copy.opset_imports.get("") or 0) < _SCATTER_ADDS_FROM_OPSET:
        from fuseq.passes.opset import raise_opset  # noqa: PLC0415 (imports the converters)

        raise_opset(copy)
    return copy


def _float_names(model: ir.Model) -> list[str]:
    found = values_by_name(model.graph)
    return [name for name, v in found.items() if v.dtype in FLOATS and _is_activation(v)]


def _is_activation(value: ir.Value) -> bool:
    """A float that no constant gives; an unknown dtype is float, because a plan named the value."""
    node = value.producer()
    is_constant = value.const_value is not None or (node is not None and node.op_type == "Constant")
    return not is_constant and (value.dtype is None or value.dtype in FLOATS)


def _nan_note(output: str) -> str:
    return (
        f"the float model's output {output!r} holds NaN on this data; check the data's preparation, "
        "or the model."
    )
