"""How much of the machine others use, from what the system counts."""

from __future__ import annotations

import pytest

from fuseq.targets.onnxruntime.neighbours import Snapshot, others_share


@pytest.mark.parametrize(
    ("busy_s", "own_s", "share"),
    [(14.0, 4.0, 0.0), (16.0, 4.0, 0.25), (18.0, 0.0, 1.0), (12.0, 4.0, 0.0), (30.0, 0.0, 1.0)],
)
def test_share_of_the_others(busy_s: float, own_s: float, share: float) -> None:
    start, end = Snapshot(100.0, 10.0, 1.0), Snapshot(104.0, busy_s, 1.0 + own_s)
    assert others_share(start, end, processors=2) == share


def test_unknown_where_the_system_does_not_tell() -> None:
    assert others_share(Snapshot(0.0, None, 0.0), Snapshot(1.0, None, 0.0), 2) == 0.0


def test_time_goes_on() -> None:
    first = Snapshot.now()
    sum(range(10**6))
    second = Snapshot.now()
    assert second.own_s > first.own_s
    assert (first.busy_s or 0) <= (second.busy_s or 0)
