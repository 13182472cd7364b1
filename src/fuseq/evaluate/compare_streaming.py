"""Run both sides over batches and keep sums alone: memory does not grow with the batches.

Where the tensors of one batch are too many for the memory that is allowed, they are taken in groups,
in graph order, and the data is read once for each group.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from fuseq.calibration.batches import Batch, Source
from fuseq.calibration.session import usable_threads
from fuseq.errors import CalibrationError
from fuseq.evaluate.compare_matching import Match
from fuseq.evaluate.compare_outputs import OutputSums
from fuseq.evaluate.compare_side import RunBatch, Side
from fuseq.evaluate.compare_sums import TensorSums

GROUP_BYTES = 256 * 2**20
"""Tensors of one batch that are alive at once, both sides together, in float32."""

_MOST_WORKERS = 2
_UNKNOWN_BYTES = 2**20

Progress = Callable[[int, int | None], None]


def grouped(
    matches: Sequence[Match], reference: Side, other: Side, batch: Batch, limit: int = GROUP_BYTES
) -> list[list[Match]]:
    """Cut ``matches`` into groups whose tensors take ``limit`` bytes or less, or are single."""
    here, there = reference.sizes(batch), other.sizes(batch)
    groups: list[list[Match]] = [[]]
    size = 0
    for match in matches:
        both = here.get(match.name, _UNKNOWN_BYTES)
        both += there.get(match.other, here.get(match.name, _UNKNOWN_BYTES))
        if groups[-1] and size + both > limit:
            groups.append([])
            size = 0
        groups[-1].append(match)
        size += both
    return groups


def stream(
    sides: tuple[Side, Side],
    groups: Sequence[Sequence[Match]],
    outputs: Sequence[OutputSums],
    source: Source,
    progress: Progress | None = None,
) -> dict[str, TensorSums]:
    """Run everything once for each group; two batches run at once, each on one core.

    Args:
        sides: The reference and the other.
        groups: Tensors to sum.
        outputs: Filled with the outputs, in the pass of the last group.
        source: The data.
        progress: Called with batches done and their number, all groups together.

    Returns:
        Sums by the reference's name; a tensor whose shapes differ in the two is absent.

    Raises:
        FuseqError: A side cannot be opened, or cannot run on a batch; or there is no batch.
    """
    passes = list(groups) or [()]
    found: dict[str, TensorSums] = {}
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, source.length and source.length * len(passes))

    for number, group in enumerate(passes):
        watched = outputs if number == len(passes) - 1 else ()
        found.update(_run_group(sides, group, watched, source, step))
    if done == 0:
        raise CalibrationError(f"{source.description} gave no batch; give one sample or more.")
    return found


def _run_group(
    sides: tuple[Side, Side],
    group: Sequence[Match],
    outputs: Sequence[OutputSums],
    source: Source,
    step: Callable[[], None],
) -> dict[str, TensorSums]:
    """One pass over the data; what was opened for it is given back when it ends."""
    workers = 1 if any(side.in_order for side in sides) else _MOST_WORKERS
    sums: list[TensorSums | None] = [TensorSums() for _ in group]
    work = functools.partial(_run_batch, _opened(sides, group, outputs), len(group))
    for parts, arrays in _in_workers(work, source, workers):
        sums = [_merged(whole, part) for whole, part in zip(sums, parts, strict=True)]
        for entry, (a, b) in zip(outputs, arrays, strict=True):
            entry.add(a, b)
        step()
    return {match.name: s for match, s in zip(group, sums, strict=True) if s is not None}


def _opened(
    sides: tuple[Side, Side], group: Sequence[Match], outputs: Sequence[OutputSums]
) -> tuple[RunBatch, RunBatch]:
    """Both sides, giving the group's values and then the outputs; a value asked for twice is given once."""
    threads = max(usable_threads() // _MOST_WORKERS, 1)
    reference, other = sides
    here = [match.name for match in group] + [entry.name for entry in outputs]
    there = [match.other for match in group] + [entry.other for entry in outputs]
    return _once(reference, here, threads), _once(other, there, threads)


def _once(side: Side, names: Sequence[str], threads: int) -> RunBatch:
    distinct = list(dict.fromkeys(names))
    places = [distinct.index(name) for name in names]
    run = side.open(distinct, threads)

    def run_batch(batch: Batch) -> list[np.ndarray]:
        arrays = run(batch)
        return [arrays[place] for place in places]

    return run_batch


_Parts = tuple[list["TensorSums | None"], list[tuple[np.ndarray, np.ndarray]]]


def _run_batch(run: tuple[RunBatch, RunBatch], tensors: int, batch: Batch) -> _Parts:
    """Sums of the first ``tensors`` values, and the others as they are."""
    pairs = list(zip(run[0](batch), run[1](batch), strict=True))
    return [_summed(a, b) for a, b in pairs[:tensors]], pairs[tensors:]


def _summed(reference: np.ndarray, other: np.ndarray) -> TensorSums | None:
    if reference.shape != other.shape:
        return None
    sums = TensorSums()
    sums.add(reference, other)
    return sums


def _merged(whole: TensorSums | None, part: TensorSums | None) -> TensorSums | None:
    if whole is None or part is None:
        return None
    whole.merge(part)
    return whole


def _in_workers(
    work: Callable[[Batch], _Parts], batches: Iterable[Batch], workers: int
) -> Iterator[_Parts]:
    """Results in order; no more batches are read than are at work."""
    pending: deque[Future[_Parts]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for batch in batches:
            pending.append(pool.submit(work, batch))
            if len(pending) >= workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
