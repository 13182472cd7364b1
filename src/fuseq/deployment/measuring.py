"""End-to-end times of a deployment: measured where the target runs on this machine, else predicted."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Sequence
from pathlib import Path

from fuseq.deployment.opened import ENGINE, FLOAT, FLOAT_ENGINE, QUANTIZED, Opened
from fuseq.deployment.stages import Made
from fuseq.evaluate.bench import BenchOptions, bench
from fuseq.report.bench_document import PREDICTED_BY, measured_timings
from fuseq.report.document import EngineRow, TimingRow
from fuseq.targets.engine_runtime.runner import runtime_missing
from fuseq.targets.onnxruntime_cpu import OnnxRuntimeCpu
from fuseq.targets.trtexec import Timed


def machine(opened: Opened) -> str:
    """What would measure here: the processor, or why no GPU does. Another machine measures again."""
    if isinstance(opened.target, OnnxRuntimeCpu):
        return opened.target.machine
    return runtime_missing(_kind(opened)) or f"{_kind(opened)} on {platform.node()}"


def bench_stage(opened: Opened, folder: Path) -> Made:
    """Time float and quantized, taking turns, where the target is this machine's CPU or GPU."""
    gap = None if isinstance(opened.target, OnnxRuntimeCpu) else runtime_missing(_kind(opened))
    if gap is not None:
        return [], {"rows": [], "missing": [_not_timed(opened, gap)]}
    chosen = opened.options.quantize
    options = BenchOptions(
        target=opened.target.name,
        gpu=chosen.gpu,
        batch=chosen.batch,
        shapes=opened.shapes,
        timed=Timed(seconds=opened.options.seconds / 2),
    )
    result = bench(_files(folder), options, opened.report)
    rows = [timing for row in result.rows for timing in measured_timings(row, opened.target.name)]
    missing = [_not_timed(opened, sentence) for sentence in result.missing]
    return [], {"rows": [dataclasses.asdict(row) for row in rows], "missing": missing}


def predicted_rows(engines: Sequence[EngineRow], batch: int) -> list[TimingRow]:
    """One row an engine whose kernels carry predictions; speed-ups refer to the first."""
    known = [(engine.name, us) for engine in engines if (us := engine.predicted_us)]
    return [
        TimingRow(
            engine=name,
            what="latency",
            runner=PREDICTED_BY,
            measured=False,
            batch=batch,
            median_ms=us / 1e3,
            throughput_per_s=1e6 / us,
            speedup=known[0][1] / us,
        )
        for name, us in known
    ]


def _files(folder: Path) -> dict[str, Path]:
    """Engine files where both are there, else the models, which are built for the GPU."""
    engines = {"float": folder / FLOAT_ENGINE, "quantized": folder / ENGINE}
    if all(path.is_file() for path in engines.values()):
        return engines
    return {"float": folder / FLOAT, "quantized": folder / QUANTIZED}


def _kind(opened: Opened) -> str:
    return opened.target.name.partition(":")[0]


def _not_timed(opened: Opened, why: str) -> str:
    return f"{opened.target.name} was not timed: {why.rstrip('.')}; times are predicted by {PREDICTED_BY}"
