"""Read the times that trtexec wrote on another machine, whichever of its files they are in.

1. ``--exportTimes``: a list with an object an inference. TensorRT 8 to 11 write ``computeMs`` (the
   GPU), ``latencyMs`` (with copies) and start and end of each step; ``inMs`` and ``outMs`` are older.
2. ``--exportProfile``: a list that begins with ``{"count": N}``, then an object a layer; the sum of
   the layers' averages is the engine's time without a CUDA graph, profiler included.
3. ``profile.metadata`` of TREx: only minimum, maximum, mean, median and 99th percentile.

The files are data from a stranger: bounded in size, every field checked, nothing executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from fuseq.errors import TargetError
from fuseq.targets.layer_info import read_json, record_number

_SUMMARY = ("min_ms", "max_ms", "mean_ms", "median_ms", "p99_ms")


@dataclasses.dataclass(frozen=True)
class Times:
    """Times of one engine.

    Attributes:
        kind: ``times``, ``profile`` or ``summary``: which of the three files it was.
        device_ms: GPU time of each inference in order; empty for a profile or summary.
        host_ms: Latency of each inference in order, copies included, the same length.
        throughput_per_s: Inferences a second over the whole run; None where timestamps are missing.
        layers_us: Average of each layer by name, for a profile.
        layer_runs: Profiled inferences behind ``layers_us``.
        summary: Statistics by name (``median_ms`` ...), for a summary.
    """

    kind: str
    device_ms: tuple[float, ...] = ()
    host_ms: tuple[float, ...] = ()
    throughput_per_s: float | None = None
    layers_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
    layer_runs: int = 0
    summary: Mapping[str, float] = dataclasses.field(default_factory=dict)


def read_times(file: Path) -> Times:
    """Read any of the three files.

    Raises:
        TargetError: Missing, too large, not JSON, none of the three, or a field has another type.
    """
    document = read_json(file)
    if isinstance(document, dict) and isinstance(document.get("performance_summary"), dict):
        return _summary(document["performance_summary"], file)
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise TargetError(
            f"{file}: holds no times; give the file of trtexec --exportTimes or --exportProfile."
        )
    if any("computeMs" in row for row in document):
        return _times(document, file)
    if any("averageMs" in row for row in document):
        return _profile(document, file)
    raise TargetError(
        f"{file}: has no entry with computeMs or averageMs; give the file of trtexec --exportTimes "
        "or --exportProfile."
    )


def _times(rows: list[dict[str, object]], file: Path) -> Times:
    device, host = [], []
    for index, row in enumerate(rows):
        where = f"{file}: entry {index}"
        device.append(record_number(row, "computeMs", where))
        host.append(record_number(row, "latencyMs", where) if "latencyMs" in row else device[-1])
    return Times("times", tuple(device), tuple(host), _throughput(rows))


def _throughput(rows: list[dict[str, object]]) -> float | None:
    """Inferences over the time from the first start to the last end, as trtexec's own summary."""
    ends = [row.get("endD2hMs", row.get("endOutMs", row.get("endComputeMs"))) for row in rows]
    starts = [
        row.get("startH2dMs", row.get("startInMs", row.get("startComputeMs"))) for row in rows
    ]
    first = [value for value in starts if isinstance(value, (int, float))]
    last = [value for value in ends if isinstance(value, (int, float))]
    if not first or not last or max(last) <= min(first):
        return None
    return 1e3 * len(rows) / (max(last) - min(first))


def _profile(rows: list[dict[str, object]], file: Path) -> Times:
    layers: dict[str, float] = {}
    runs = 0
    for index, row in enumerate(rows):
        where = f"{file}: entry {index}"
        if "name" not in row:
            runs = int(record_number(row, "count", where))
            continue
        name = str(row["name"])
        layers[name] = layers.get(name, 0.0) + 1e3 * record_number(row, "averageMs", where)
    return Times("profile", layers_us=layers, layer_runs=runs)


def _summary(summary: Mapping[str, object], file: Path) -> Times:
    values = summary.get("GPU Compute Time")
    if not isinstance(values, list) or len(values) < len(_SUMMARY):
        raise TargetError(
            f"{file}: GPU Compute Time is not a list of {len(_SUMMARY)} numbers or more."
        )
    numbers = {
        name: record_number({name: value}, name, f"{file}: GPU Compute Time")
        for name, value in zip(_SUMMARY, values, strict=False)
    }
    qps = summary.get("Throughput")
    throughput = record_number(summary, "Throughput", f"{file}") if qps is not None else None
    return Times("summary", summary=numbers, throughput_per_s=throughput)
