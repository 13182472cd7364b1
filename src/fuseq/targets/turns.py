"""Times several runs in one measurement, taking turns, so that what disturbs one disturbs all.

Processors change their clock and other programs come and go, over seconds and by tens of per cent.
So models are not timed one after another but in rounds (A B C, B C A, C A B ...), and two models are
compared by what they took in the same round.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

MIN_ROUNDS = 5
"""Rounds that are run even if they take longer than asked."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One inference: ``host_ms`` from the call to the result, ``device_ms`` what the device worked."""

    host_ms: float
    device_ms: float | None = None


Run = Callable[[], float | None]
"""Does one inference, waits for its end, and returns the device's time in ms, None if it has none."""


def take_turns(
    runs: Sequence[Run],
    *,
    seconds: float,
    iterations: int = MIN_ROUNDS,
    most: int | None = None,
    warmup_ms: float = 0.0,
) -> tuple[tuple[Sample, ...], ...]:
    """Samples by round and run; the order within a round is turned by one each round.

    Args:
        runs: What is timed, at least one.
        seconds: The measurement goes on until this time is over, all runs together ...
        iterations: ... and until this many rounds are done (``trtexec --duration --iterations``).
        most: Rounds after which it ends, even if time is left.
        warmup_ms: Untimed rounds before, at least one and at least this long (``--warmUp``).
    """
    _warm_up(runs, warmup_ms)
    rounds: list[tuple[Sample, ...]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < max(iterations, 1) or time.perf_counter() < end:
        if most is not None and len(rounds) >= most:
            break
        first = len(rounds) % len(runs)
        samples = {
            place: _sample(runs[place]) for place in (*range(first, len(runs)), *range(first))
        }
        rounds.append(tuple(samples[place] for place in range(len(runs))))
    return tuple(rounds)


def _warm_up(runs: Sequence[Run], warmup_ms: float) -> None:
    end = time.perf_counter() + warmup_ms / 1e3
    while True:
        for run in runs:
            run()
        if time.perf_counter() >= end:
            return


def _sample(run: Run) -> Sample:
    started = time.perf_counter()
    device_ms = run()
    return Sample((time.perf_counter() - started) * 1e3, device_ms)
