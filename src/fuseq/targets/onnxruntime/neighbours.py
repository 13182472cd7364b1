"""How much of this machine other programs use while something is timed."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Seconds so far: of the clock, of all processors at work, of this process.

    ``busy_s`` is None where the system does not tell (no ``/proc/stat``).
    """

    clock_s: float
    busy_s: float | None
    own_s: float

    @staticmethod
    def now() -> Snapshot:
        """As the system counts it, in ticks of 10 ms."""
        return Snapshot(time.perf_counter(), _busy_seconds(), time.process_time())


def others_share(start: Snapshot, end: Snapshot, processors: int) -> float:
    """Share of the processors' time that went to other programs, 0 to 1; 0 where it is not known."""
    if start.busy_s is None or end.busy_s is None or end.clock_s <= start.clock_s:
        return 0.0
    others_s = (end.busy_s - start.busy_s) - (end.own_s - start.own_s)
    return min(max(others_s / (end.clock_s - start.clock_s) / processors, 0.0), 1.0)


def _busy_seconds() -> float | None:
    """User, nice, system, irq, softirq and steal time of all processors (man 5 proc_stat)."""
    if not _STAT.is_file():
        return None
    fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
