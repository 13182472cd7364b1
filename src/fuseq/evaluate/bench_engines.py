"""Times engines on this machine's GPU, with device buffers; names what is missing where there is none.

Not run where this was written, for want of a GPU (:mod:`fuseq.targets.engine_runtime.runner`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from fuseq.errors import TargetError
from fuseq.evaluate.bench_rows import (
    BenchOptions,
    BenchResult,
    BenchRow,
    findings_of,
    measured_rows,
)
from fuseq.model import profile_for
from fuseq.planning import Report
from fuseq.targets.engine_files import engine_kind
from fuseq.targets.engine_runtime.build import build_plan
from fuseq.targets.engine_runtime.runner import open_engine, runtime_missing
from fuseq.targets.onnxruntime_cpu import example_feeds
from fuseq.targets.turns import Run, take_turns


def on_gpu(
    target: str,
    rows: Sequence[BenchRow],
    models: Mapping[str, ir.Model],
    options: BenchOptions,
    report: Report,
) -> BenchResult:
    """Time ``rows`` on the GPU; without one, return them as they are and say what was not measured.

    Args:
        target: ``compiler:device``, or the compiler alone for engine files.
        rows: Models that were compiled for the target, and engine files.
        models: The model of each row that is no engine file.
        options: How they are timed.
        report: Called with stage, done, total.
    """
    missing = runtime_missing(target.partition(":")[0])
    if missing is None:
        try:
            measured, notes = _measured(target, rows, models, options, report)
        except TargetError as error:
            missing = str(error)
        else:
            return BenchResult(target, measured, findings=findings_of(measured), notes=notes)
    predicted = any(row.predicted_us is not None for row in rows)
    rest = "times are predicted." if predicted else "the command times it where there is one."
    return BenchResult(
        target,
        tuple(rows),
        (f"{target}: nothing was measured ({missing.rstrip('.')}); {rest}",),
        findings_of(rows),
    )


def _measured(
    target: str,
    rows: Sequence[BenchRow],
    models: Mapping[str, ir.Model],
    options: BenchOptions,
    report: Report,
) -> tuple[tuple[BenchRow, ...], tuple[str, ...]]:
    timed = options.timed
    with contextlib.ExitStack() as resources:
        runs: list[Run] = []
        for number, row in enumerate(rows):
            report("load", number, len(rows))
            plan, kind, feeds = _plan(target, row, models.get(row.name), options)
            shapes = {name: a.shape for name, a in feeds.items()} if feeds else options.shapes
            runner = resources.enter_context(
                open_engine(plan, kind, shapes, cuda_graph=timed.cuda_graph, streams=timed.streams)
            )
            runner.upload(feeds or runner.example_feeds())
            runs.append(runner.run)
        report("time", 0, None)
        rounds = take_turns(
            runs,
            seconds=timed.seconds * len(runs),
            iterations=timed.iterations,
            warmup_ms=timed.warmup_ms,
        )
    done = measured_rows(rows, rounds)
    if timed.streams > 1:
        done = tuple(
            dataclasses.replace(row, throughput_per_s=(row.throughput_per_s or 0) * timed.streams)
            for row in done
        )
    graph = "one CUDA graph each" if timed.cuda_graph else "no CUDA graph"
    how = f"measured here in {len(rounds)} rounds, the engines taking turns, {graph}, no transfers"
    return done, (how,)


def _plan(
    target: str, row: BenchRow, model: ir.Model | None, options: BenchOptions
) -> tuple[bytes, str, dict[str, np.ndarray]]:
    """The serialized engine, its kind, and inputs; none for an engine file, which tells its own."""
    if model is None:
        file = Path(row.source)
        return file.read_bytes(), engine_kind(file) or "tensorrt", {}
    kind = target.partition(":")[0]
    profile = profile_for(model, options.batch, options.shapes)
    plan = row.engine.plan_bytes if row.engine is not None else None
    return plan or build_plan(model, profile), kind, example_feeds(model, profile)
