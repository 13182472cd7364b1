"""A benchmark from the files that trtexec wrote on another machine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from fuseq.errors import OptionError
from fuseq.evaluate.bench_rows import BenchResult, BenchRow, findings_of
from fuseq.evaluate.bench_statistics import Outliers, Ratio, Spread, spread
from fuseq.targets.trtexec_times import Times, read_times


def load_times(files: Mapping[str, Path]) -> BenchResult:
    """Rows of ``files`` by name, in order; ratios refer to the first.

    The engines did not take turns, so a ratio is that of two medians, without an interval.

    Raises:
        OptionError: No file.
        TargetError: A file is not what trtexec or TREx writes.
    """
    if not files:
        raise OptionError("no file of times; give at least one.")
    rows = [_row(name, file, read_times(file)) for name, file in files.items()]
    first = rows[0].median_ms or 0.0
    rows = [
        dataclasses.replace(row, ratio=Ratio(first / row.median_ms, None, None))
        if row.median_ms
        else row
        for row in rows
    ]
    how = "read from trtexec's files: measured on another machine, one engine after the other"
    return BenchResult("trtexec", tuple(rows), findings=findings_of(rows), notes=(how,))


def _row(name: str, file: Path, times: Times) -> BenchRow:
    row = BenchRow(name, str(file), None, throughput_per_s=times.throughput_per_s)
    if times.kind == "times":
        return dataclasses.replace(
            row,
            device=spread(times.device_ms),
            host=spread(times.host_ms),
            rounds_ms=times.device_ms,
        )
    if times.kind == "summary":
        return dataclasses.replace(row, device=_stated(times.summary))
    total_ms = math.fsum(times.layers_us.values()) / 1e3
    note = (
        f"{name}: the sum of {len(times.layers_us)} layers' averages over {times.layer_runs} "
        "profiled runs; the profiler adds to each, and there is no CUDA graph"
    )
    return dataclasses.replace(
        row, device=dataclasses.replace(spread([total_ms]), runs=times.layer_runs), notes=(note,)
    )


def _stated(summary: Mapping[str, float]) -> Spread:
    """The five numbers that TREx keeps; what it does not keep is None."""
    return Spread(
        runs=0,
        min_ms=summary["min_ms"],
        mean_ms=summary["mean_ms"],
        median_ms=summary["median_ms"],
        p90_ms=None,
        p95_ms=None,
        p99_ms=summary["p99_ms"],
        max_ms=summary["max_ms"],
        stdev_ms=None,
        outliers=Outliers(math.inf, (), 0.0),
    )
