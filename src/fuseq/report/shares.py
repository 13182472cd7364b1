"""Where an engine's time goes: kernels by type, by precision or by anything else, sums of their times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from fuseq.report.document import EngineRow, KernelRow

ALONE = "Q/DQ and casts"
"""What kernels that do nothing but quantize, dequantize or change dtype are called in a breakdown."""


@dataclasses.dataclass(frozen=True)
class Share:
    """One group of kernels.

    Attributes:
        key: What they have in common.
        kernels: How many they are.
        time_us: Sum of their times, measured where the engine was measured, else predicted.
        part: ``time_us`` over the sum of all groups, 0 to 1; 0 where nothing has a time.
    """

    key: str
    kernels: int
    time_us: float
    part: float


def is_measured(engine: EngineRow) -> bool:
    """Its times are measurements."""
    return engine.measured_us is not None


def total_us(engine: EngineRow) -> float | None:
    """The engine's measured time, else its predicted one."""
    return engine.measured_us if is_measured(engine) else engine.predicted_us


def time_us(kernel: KernelRow, measured: bool) -> float | None:
    """The kernel's time of one kind; never the other in its place."""
    return kernel.measured_us if measured else kernel.predicted_us


def shares(engine: EngineRow, key: Callable[[KernelRow], str]) -> tuple[Share, ...]:
    """Kernels grouped by ``key``, the longest time first, then by name."""
    measured = is_measured(engine)
    groups: dict[str, list[KernelRow]] = {}
    for kernel in engine.kernels:
        groups.setdefault(key(kernel), []).append(kernel)
    sums = {name: _sum_us(rows, measured) for name, rows in groups.items()}
    total = math.fsum(sums.values())
    found = (
        Share(name, len(rows), sums[name], sums[name] / total if total else 0.0)
        for name, rows in groups.items()
    )
    return tuple(sorted(found, key=lambda share: (-share.time_us, share.key)))


def by_precision(kernel: KernelRow) -> str:
    """Precision of a kernel that computes; kernels alone are a group of their own."""
    return ALONE if kernel.alone else kernel.precision or "other"


def by_type(kernel: KernelRow) -> str:
    """The kernel's type."""
    return kernel.type


def _sum_us(kernels: Sequence[KernelRow], measured: bool) -> float:
    return math.fsum(time_us(kernel, measured) or 0.0 for kernel in kernels)
