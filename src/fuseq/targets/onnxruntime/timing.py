"""Times several models in one run, taking turns, so that what disturbs one disturbs all.

Processors change their clock and other programs come and go, over seconds and by tens of per cent.
So models are not timed one after another but in rounds (A B C, A B C ...), the order turned by one
each round, and the ratio of two models is the median over rounds of the ratio inside one round.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

from fuseq.errors import OptionError
from fuseq.targets.onnxruntime.session import (
    Feeds,
    ModelLike,
    open_session,
    run_session,
    session_options,
    usable_cpus,
)

MIN_ROUNDS = 5
"""Rounds that are run even if they take longer than asked."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of one model among several that took turns.

    Attributes:
        name: As the caller called it.
        median_ms: Median over rounds, in milliseconds.
        best_ms: Shortest run.
        rounds_ms: Every run, in order.
        speedup: How many times faster than the first model: median over rounds of the first
            model's time divided by this one's.
    """

    name: str
    median_ms: float
    best_ms: float
    rounds_ms: tuple[float, ...]
    speedup: float

    @property
    def rounds(self) -> int:
        """Number of timed runs."""
        return len(self.rounds_ms)


def time_models(
    models: Mapping[str, ModelLike],
    feeds: Feeds,
    *,
    seconds: float = 10.0,
    warmup: int = 3,
    threads: int | None = None,
) -> tuple[Timing, ...]:
    """Time ``models`` on the same ``feeds``, taking turns, each thread on a processor of its own.

    Args:
        models: At least one, by name; the first is what ``speedup`` refers to.
        feeds: Input arrays by name; every model takes the same ones.
        seconds: Time of the measurement, all models together; at least ``MIN_ROUNDS`` rounds run.
        warmup: Untimed runs of each model.
        threads: Threads of one operator; all usable processors by default.

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
        sessions = {
            name: open_session(model, session_options(count, cpus[:count]), name)
            for name, model in models.items()
        }
        for session in sessions.values():
            for _ in range(max(warmup, 1)):
                run_session(session, feeds)
        rounds = _rounds(list(sessions.values()), feeds, seconds)
    return _timings(list(models), rounds)


def _rounds(sessions: Sequence[object], feeds: Feeds, seconds: float) -> list[tuple[float, ...]]:
    """Milliseconds by round and model."""
    rounds: list[tuple[float, ...]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < MIN_ROUNDS or time.perf_counter() < end:
        first = len(rounds) % len(sessions)
        times = [0.0] * len(sessions)
        for place in (*range(first, len(sessions)), *range(first)):
            started = time.perf_counter()
            run_session(sessions[place], feeds)
            times[place] = (time.perf_counter() - started) * 1e3
        rounds.append(tuple(times))
    return rounds


def _timings(names: Sequence[str], rounds: Sequence[tuple[float, ...]]) -> tuple[Timing, ...]:
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
