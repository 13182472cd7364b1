"""Spread, outliers and ratios of run times, by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseq.evaluate.bench_statistics import paired_ratio, percentile, spread


def test_hundred_times_by_hand() -> None:
    found = spread([float(number) for number in range(100, 0, -1)])  # 100, 99 ... 1
    assert (found.runs, found.min_ms, found.max_ms) == (100, 1.0, 100.0)
    assert (found.mean_ms, found.median_ms) == (50.5, 50.5)
    # trtexec leaves out floor(100 x 0.1), floor(100 x 0.05), floor(100 x 0.01) of the longest
    assert (found.p90_ms, found.p95_ms, found.p99_ms) == (90.0, 95.0, 99.0)
    assert found.stdev_ms == pytest.approx(statistics.stdev(range(1, 101)))
    assert found.outliers.places == ()


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300), st.sampled_from([50, 90, 95, 99]))
def test_percentiles_are_times_that_occurred(times: list[float], percent: int) -> None:
    value = percentile(sorted(times), percent)
    assert value in times
    assert sum(time <= value for time in times) >= len(times) * percent / 100 - 1e-9


def test_k101_single_runs_of_70_ms_among_1000_of_2_ms() -> None:
    times = list(np.random.default_rng(0).normal(2.0, 0.02, 1000))
    times[17] = times[800] = 70.0
    found = spread(times)
    assert found.outliers.places == (17, 800)
    assert found.outliers.worst_ms == 70.0
    assert found.outliers.limit_ms == pytest.approx(1.5 * found.median_ms)
    assert found.median_ms == pytest.approx(2.0, abs=0.01)
    assert found.p99_ms < 2.1  # two in a thousand do not reach it
    assert found.max_ms == 70.0
    assert found.mean_ms == pytest.approx(np.mean(times))  # they stay in the mean


def test_a_steady_series_has_no_outliers_by_accident() -> None:
    assert spread([1.0] * 50 + [1.2]).outliers.places == ()
    assert spread([1.0] * 50 + [1.6]).outliers.places == (50,)
    assert spread([1.0, 9.0]).outliers.places == ()  # too few to say


def test_ratio_is_the_median_of_rounds_not_of_times() -> None:
    # The processor is twice as slow in every second round; round by round the ratio is always 2.
    reference = [4.0, 8.0, 4.0, 8.0, 4.0]
    times = [2.0, 4.0, 2.0, 4.0, 2.0]
    found = paired_ratio(reference, times)
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)


def test_confidence_interval_is_the_order_statistics_of_the_sign_test() -> None:
    found = paired_ratio([float(number) for number in range(1, 101)], [1.0] * 100)
    # n/2 -+ 0.98 sqrt(n) = 50 -+ 9.8: the 41st and the 61st of the sorted ratios, counted from 1
    assert (found.low, found.median, found.high) == (41.0, 50.5, 61.0)


def test_confidence_interval_covers_the_median_about_95_times_in_100() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        ratio = paired_ratio(list(random.lognormal(0.0, 0.2, 60)), [1.0] * 60)
        hits += ratio.low <= 1.0 <= ratio.high
    assert 0.92 <= hits / 400 <= 0.995
