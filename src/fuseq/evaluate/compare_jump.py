"""Where the error comes from: what each tensor adds to the error of those it is computed from.

An error jumps at a tensor where all of this holds:
1. its relative error is 5 % or more,
2. at least three times that of the worst compared tensor before it (rounding of 1 % there is taken
   for granted, so that the first quantized layer is no jump), or values turn NaN or infinite there,
3. it is not healed: some compared tensor behind it keeps a third of the error, or there is none.
   A mask whose large values differ, or a name that both models use for different things, is healed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fuseq.evaluate.compare_side import Value
from fuseq.report.document_closeness import TensorErrorRow

LEAST = 0.05
FACTOR = 3.0
_GRANTED = 0.01


def with_jumps(
    rows: Sequence[TensorErrorRow], values: Sequence[Value]
) -> tuple[TensorErrorRow, ...]:
    """Fill ``added`` and ``jump`` of rows that are in graph order.

    Args:
        rows: Compared tensors.
        values: All values of the reference, in graph order.
    """
    by_name = {row.name: row for row in rows}
    before = _compared_before(by_name, values)
    behind: dict[str, list[str]] = {}
    for name, nearest in before.items():
        for source in nearest:
            behind.setdefault(source, []).append(name)
    done = []
    for row in rows:
        sources = [by_name[name] for name in before.get(row.name, ())]
        worst = max((_error(source) for source in sources), default=0.0)
        followers = [by_name[name] for name in behind.get(row.name, ())]
        jumps = _leaps(row, worst, sources) and _stays(row, followers)
        added = None if row.relative is None else row.relative - worst
        done.append(dataclasses.replace(row, added=added, jump=jumps))
    return tuple(done)


def first_jump(rows: Sequence[TensorErrorRow]) -> tuple[str, str]:
    """Name of the first tensor where the error jumps, and the jump in words; "" twice if none does."""
    row = next((row for row in rows if row.jump), None)
    if row is None:
        return "", ""
    where = row.module or row.node
    made = f"made by {row.op_type}" + (f" of {where}" if where else "")
    if row.not_finite:
        return row.name, f"{row.not_finite} values are NaN or infinite in the other only, {made}"
    if row.relative is None:
        return row.name, f"the reference is all zero and the other is not, {made}"
    before = row.relative - (row.added or 0.0)
    return row.name, (
        f"relative error {100 * row.relative:.1f} % after {100 * before:.1f} % before it, {made}"
    )


def _compared_before(
    compared: Mapping[str, TensorErrorRow], values: Sequence[Value]
) -> dict[str, tuple[str, ...]]:
    """The nearest compared tensors before each compared tensor."""
    nearest: dict[str, tuple[str, ...]] = {}
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        sources: dict[str, None] = {}
        for parent in value.parents:
            sources.update(dict.fromkeys(nearest.get(parent, ())))
        if value.name in compared:
            found[value.name] = tuple(sources)
            nearest[value.name] = (value.name,)
        else:
            nearest[value.name] = tuple(sources)
    return found


def _error(row: TensorErrorRow) -> float:
    return 0.0 if row.relative is None else row.relative


def _leaps(row: TensorErrorRow, worst: float, sources: Sequence[TensorErrorRow]) -> bool:
    if row.not_finite and not any(source.not_finite for source in sources):
        return True
    if row.relative is None:
        return not any(source.relative is None for source in sources)
    return row.relative >= LEAST and row.relative >= FACTOR * max(worst, _GRANTED)


def _stays(row: TensorErrorRow, followers: Sequence[TensorErrorRow]) -> bool:
    if not followers or (row.not_finite and any(other.not_finite for other in followers)):
        return True
    if row.relative is None:
        return any(other.relative is None for other in followers)
    return any(
        other.relative is None or other.relative * FACTOR >= row.relative for other in followers
    )
