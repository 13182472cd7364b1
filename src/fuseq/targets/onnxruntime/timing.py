"""Times several models on ONNX Runtime's CPU provider in one run, taking turns, threads pinned."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuseq.errors import OptionError
from fuseq.targets.base import Timing
from fuseq.targets.onnxruntime.session import (
    Feeds,
    ModelLike,
    open_session,
    run_session,
    session_options,
    usable_cpus,
)
from fuseq.targets.turns import MIN_ROUNDS, Run, take_turns

MAX_ROUNDS = 1000
"""Rounds of a model that takes microseconds, however long the measurement may take."""


def time_models(
    models: Mapping[str, ModelLike],
    feeds: Feeds,
    *,
    seconds: float = 10.0,
    warmup: int = 3,
    threads: int | None = None,
    least: int = MIN_ROUNDS,
    most: int = MAX_ROUNDS,
    processor_time: bool = False,
) -> tuple[Timing, ...]:
    """Time ``models`` on the same ``feeds``, taking turns, each thread on a processor of its own.

    Args:
        models: At least one, by name; the first is what ``speedup`` refers to.
        feeds: Input arrays by name; every model takes the same ones.
        seconds: Time of the measurement, all models together; at least 5 rounds run.
        warmup: Untimed runs of each model.
        threads: Threads of one operator; all usable processors by default.
        least: Rounds that are run even if they take longer.
        most: Rounds after which it ends, even if time is left.
        processor_time: Count the caller's processor time, without what other programs take; only
            with one thread.

    Raises:
        OptionError: No model, or more threads than processors.
        TargetError: ONNX Runtime refused a model or its inputs.
    """
    with pinned_runs(models, dict.fromkeys(models, feeds), threads) as runs:
        for run in runs.values():
            for _ in range(warmup - 1):
                run()
        timed = [_with_processor_time(run) for run in runs.values()]
        rounds = take_turns(timed, seconds=seconds, iterations=least, most=most)
    return _timings(
        list(models),
        [
            [(each.device_ms or 0.0) if processor_time else each.host_ms for each in row]
            for row in rounds
        ],
    )


def _with_processor_time(run: Run) -> Run:
    """Give the processor time of the calling thread, in milliseconds."""

    def timed() -> float:
        started = time.thread_time()
        run()
        return (time.thread_time() - started) * 1e3

    return timed


@contextlib.contextmanager
def pinned_runs(
    models: Mapping[str, ModelLike], feeds: Mapping[str, Feeds], threads: int | None = None
) -> Iterator[dict[str, Run]]:
    """Open a session for each model and give what runs each once; threads stay on their processors.

    Args:
        models: At least one, by name.
        feeds: The inputs of each, by the same names.
        threads: Threads of one operator, the caller's included; all usable processors by default.

    Raises:
        OptionError: No model, or more threads than processors.
        TargetError: ONNX Runtime refused a model or its inputs.
    """
    if not models:
        raise OptionError("no model to time; give at least one.")
    cpus = usable_cpus()
    count = threads or len(cpus)
    if not 0 < count <= len(cpus):
        raise OptionError(
            f"threads={threads}: this process may use {len(cpus)} processors; choose 1 to {len(cpus)}."
        )
    with _pinned(cpus[0]):
        runs = {}
        for name, model in models.items():
            session = open_session(model, session_options(count, cpus[:count]), name)
            run_session(session, feeds[name])  # refuses wrong inputs with a sentence
            runs[name] = _run_of(session, dict(feeds[name]), alone=count == 1)
        yield runs


def _run_of(session: Any, feeds: dict[str, Any], *, alone: bool) -> Run:
    """One run; with one thread it returns the processor time, which other programs do not lengthen."""

    def run() -> float | None:
        started = time.thread_time()
        session.run(None, feeds)
        return (time.thread_time() - started) * 1e3 if alone else None

    return run


def _timings(names: Sequence[str], rounds: Sequence[Sequence[float]]) -> tuple[Timing, ...]:
    columns = list(zip(*rounds, strict=True))
    return tuple(
        Timing(
            name=name,
            median_ms=statistics.median(column),
            best_ms=min(column),
            rounds_ms=column,
            speedup=statistics.median(a / b for a, b in zip(columns[0], column, strict=True)),
        )
        for name, column in zip(names, columns, strict=True)
    )


@contextlib.contextmanager
def _pinned(cpu: int) -> Iterator[None]:
    """Keep the calling thread on one processor, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
