"""What a list of run times says: spread, outliers, and the ratio of two models that took turns.

Percentiles are trtexec's: of N sorted times the one that N - 1 - floor(N (1 - p)) others precede or
equal, a time that really occurred. Outliers are Tukey's far-out values (Exploratory Data Analysis,
1977: beyond the upper quartile plus three interquartile ranges) that are also longer than 1.5
medians, so that a very steady series has none by accident. Outliers stay in every statistic; they
are named beside it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

_FAR_OUT = 3.0
_LONGER = 1.5


@dataclasses.dataclass(frozen=True)
class Outliers:
    """Runs that took much longer than the others.

    Attributes:
        limit_ms: Runs above this count.
        places: Their numbers, from 0, in the order of the run.
        worst_ms: The longest, 0.0 without any.
    """

    limit_ms: float
    places: tuple[int, ...]
    worst_ms: float


@dataclasses.dataclass(frozen=True)
class Spread:
    """Run times of one model, milliseconds; every run is in every number.

    Attributes:
        runs: How many; 0 where only statistics were stated.
        stdev_ms: Standard deviation, 0.0 of a single run.

    A statistic is None where it was stated by another tool without it.
    """

    runs: int
    min_ms: float
    mean_ms: float
    median_ms: float
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float
    max_ms: float
    stdev_ms: float | None
    outliers: Outliers


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times faster a model is than the reference.

    Attributes:
        median: Median over rounds of the reference's time divided by the model's.
        low: Lower end of the median's 95 % confidence interval; None without rounds.
        high: Upper end.
    """

    median: float
    low: float | None
    high: float | None


def spread(times_ms: Sequence[float]) -> Spread:
    """Statistics of at least one time."""
    ordered = sorted(times_ms)
    return Spread(
        runs=len(ordered),
        min_ms=ordered[0],
        mean_ms=statistics.fmean(ordered),
        median_ms=statistics.median(ordered),
        p90_ms=percentile(ordered, 90),
        p95_ms=percentile(ordered, 95),
        p99_ms=percentile(ordered, 99),
        max_ms=ordered[-1],
        stdev_ms=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        outliers=_outliers(times_ms, ordered),
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The time that ``percent`` of the runs do not exceed, of sorted times."""
    excluded = len(ordered) * (100 - percent) // 100
    return ordered[max(len(ordered) - 1 - excluded, 0)]


def paired_ratio(reference_ms: Sequence[float], times_ms: Sequence[float]) -> Ratio:
    """Ratio of two models, round by round; both lists have the same length, at least 1.

    The interval holds the order statistics n/2 +- 0.98 sqrt(n) of the ratios (Conover, Practical
    Nonparametric Statistics, 3rd edition, section 3.2: the normal approximation of the sign test).
    """
    ratios = sorted(a / b for a, b in zip(reference_ms, times_ms, strict=True))
    count = len(ratios)
    half_width = 0.98 * math.sqrt(count)
    low = max(math.floor(count / 2 - half_width), 0)
    high = min(math.ceil(count / 2 + half_width), count - 1)
    return Ratio(statistics.median(ratios), ratios[low], ratios[high])


def _outliers(times_ms: Sequence[float], ordered: Sequence[float]) -> Outliers:
    if len(ordered) < 4:
        return Outliers(math.inf, (), 0.0)
    lower, median, upper = statistics.quantiles(ordered, n=4, method="inclusive")
    limit = max(upper + _FAR_OUT * (upper - lower), _LONGER * median)
    places = tuple(place for place, time in enumerate(times_ms) if time > limit)
    return Outliers(limit, places, max((times_ms[place] for place in places), default=0.0))
