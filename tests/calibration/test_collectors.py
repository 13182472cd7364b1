from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fuseq.calibration.collectors import METHODS, chooser_named
from fuseq.calibration.collectors.entropy import divergences, entropy_range
from fuseq.calibration.collectors.mse import mse_range
from fuseq.calibration.collectors.percentile import percentile_range
from fuseq.calibration.histogram import BINS, Counts, Histogram, merged_bins
from fuseq.calibration.ranges import EMPTY, Problem, Range
from fuseq.errors import OptionError
from fuseq.formats import FORMATS, FP8, INT8, UINT8, Format


def histogram_of(x: np.ndarray) -> Histogram:
    amax = float(np.abs(x).max())
    exponent = math.ceil(math.log2(amax))
    index = np.trunc(x * 2.0**-exponent * BINS).astype(int).clip(1 - BINS, BINS - 1)
    counts = Counts()
    counts.add(np.bincount(index % (2 * BINS), minlength=2 * BINS), exponent)
    return counts.histogram(Range(float(x.min()), float(x.max())))


def heavy_tailed(seed: int = 0, count: int = 200_000) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(4, count)


def test_percentile_of_magnitudes() -> None:
    x = heavy_tailed()
    histogram = histogram_of(x)
    for percentile in (99.0, 99.9, 99.99, 100.0):
        found = percentile_range(histogram, INT8, percentile=percentile)
        exact = np.percentile(np.abs(x), percentile)
        assert exact - histogram.width <= found.amax <= exact + histogram.width
    assert percentile_range(histogram, INT8, percentile=100.0) == histogram.range


def test_percentile_cuts_both_ends_of_an_asymmetric_format() -> None:
    x = heavy_tailed() + np.random.default_rng(1).exponential(2, 200_000)
    histogram = histogram_of(x)
    found = percentile_range(histogram, UINT8, percentile=99.0)
    assert abs(found.minimum - np.percentile(x, 0.5)) <= histogram.width
    assert abs(found.maximum - np.percentile(x, 99.5)) <= histogram.width


def test_percentile_of_nearly_nothing_but_zeros_keeps_a_scale() -> None:
    x = np.zeros(100_000)
    x[7] = 5.0
    for fmt in (INT8, UINT8):
        found = percentile_range(histogram_of(x), fmt)
        assert found.maximum == 8.0 / BINS and found.problem is None


@given(st.integers(0, 50), st.floats(60, 100))
def test_percentile_keeps_its_share(seed: int, percentile: float) -> None:
    x = heavy_tailed(seed, 2000)
    histogram = histogram_of(x)
    amax = percentile_range(histogram, INT8, percentile=percentile).amax + histogram.width
    assert (np.abs(x) <= amax).mean() >= percentile / 100


def literal_divergence(counts: np.ndarray, kept: int, levels: int) -> float:
    """The GTC 2017 algorithm, bin by bin; levels split the kept bins at rounded edges."""
    reference = counts[:kept].astype(float)
    outliers = counts[kept:].sum()
    reference[-1] += outliers
    candidate = np.zeros(kept)
    for level in range(levels):
        start, stop = round(level * kept / levels), round((level + 1) * kept / levels)
        part = counts[start:stop].astype(float)
        if part.sum():
            candidate[start:stop] = np.where(part > 0, part.sum() / (part > 0).sum(), 0)
    if candidate.sum() == 0:
        return np.inf
    p, q = reference / reference.sum(), candidate / candidate.sum()
    if (q[p > 0] == 0).any():
        return np.inf
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


@pytest.mark.parametrize("shape", ["normal", "heavy", "gaps"])
def test_divergence_in_closed_form_is_the_literal_algorithm(shape: str) -> None:
    x = {
        "normal": np.random.default_rng(0).normal(0, 1, 5000),
        "heavy": heavy_tailed(count=5000),
        "gaps": np.repeat(heavy_tailed(count=60), 5),
    }[shape]
    counts = histogram_of(x).magnitudes.astype(np.float64)
    candidates = np.array([128, 136, 200, 511, 1024, counts.size - 1, counts.size])
    found = divergences(counts, candidates, np.arange(1, 129) / 128)
    for kept, divergence in zip(candidates, found, strict=True):
        wanted = literal_divergence(counts, int(kept), 128)
        if np.isinf(wanted):
            assert np.isinf(divergence)
        else:
            np.testing.assert_allclose(divergence, wanted, rtol=1e-9, atol=1e-12)


def test_entropy_clips_a_lone_outlier_and_keeps_a_uniform_range() -> None:
    rng = np.random.default_rng(0)
    tail = np.append(rng.normal(0, 1, 100_000), 50.0)
    assert entropy_range(histogram_of(tail), INT8).amax < 10
    flat = rng.uniform(-1, 1, 100_000)
    assert entropy_range(histogram_of(flat), INT8).amax > 0.98


def test_entropy_levels_by_format() -> None:
    positive = histogram_of(np.abs(heavy_tailed()))
    counts = positive.magnitudes.astype(np.float64)
    counts[0] = counts[1]
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    middles = np.append((codes[1:] + codes[:-1]) / 2, 448) / 448
    kept = np.arange(positive.bins, 255, -(positive.bins // 256))
    for fmt, levels in (
        (INT8, np.arange(1, 129) / 128),
        (UINT8, np.arange(1, 257) / 256),
        (FP8, middles),
    ):
        best = kept[np.argmin(divergences(counts, kept, levels))]
        found = entropy_range(positive, fmt).amax
        assert found == min(best * positive.width, positive.range.amax)
    assert len({entropy_range(positive, fmt).amax for fmt in (INT8, FP8)}) == 2
    signed = histogram_of(heavy_tailed())
    assert entropy_range(signed, UINT8).amax == entropy_range(signed, INT8).amax


def test_entropy_of_one_value_keeps_it() -> None:
    x = np.zeros(1000)
    x[0] = 3.0
    assert entropy_range(histogram_of(x), INT8) == Range(0.0, 3.0)
    assert entropy_range(histogram_of(np.full(10, -2.0)), INT8) == Range(-2.0, -2.0)


def mean_error(x: np.ndarray, low: float, high: float, fmt: Format) -> float:
    """Mean squared error of the samples themselves."""
    if fmt.is_float:
        scale = high / 448
        q = np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(float)
        return float(((q * scale - x) ** 2).mean())
    if fmt.symmetric:
        scale = high / 127
        return float(((np.clip(np.round(x / scale), -128, 127) * scale - x) ** 2).mean())
    scale = (high - low) / 255
    zero = round(-low / scale)
    q = np.clip(np.round(x / scale) + zero, 0, 255)
    return float((((q - zero) * scale - x) ** 2).mean())


@pytest.mark.parametrize("fmt", [INT8, FP8])
def test_mse_is_near_the_best_threshold(fmt: Format) -> None:
    x = np.random.default_rng(0).standard_t(2.5, 50_000)
    amax = float(np.abs(x).max())
    found = mse_range(histogram_of(x), fmt).amax
    best = min(mean_error(x, -t, t, fmt) for t in np.linspace(amax / 20, amax, 100))
    assert mean_error(x, -found, found, fmt) <= best * 1.02
    if fmt is INT8:
        assert found < 0.8 * amax


def test_mse_of_an_asymmetric_format_moves_both_ends() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_t(2.5, 50_000) + rng.exponential(1, 50_000)
    seen = Range(float(x.min()), float(x.max()))
    found = mse_range(histogram_of(x), UINT8)
    assert seen.minimum < found.minimum < 0 < found.maximum < seen.maximum
    error = mean_error(x, found.minimum, found.maximum, UINT8)
    assert error < 0.95 * mean_error(x, seen.minimum, seen.maximum, UINT8)
    for low in np.linspace(found.minimum * 1.5, found.minimum * 0.7, 9):
        for high in np.linspace(found.maximum * 0.7, found.maximum * 1.5, 9):
            assert mean_error(x, low, high, UINT8) >= error * 0.97


def test_mse_keeps_values_on_the_grid() -> None:
    x = np.repeat(np.arange(-127.0, 128.0), 20)
    assert mse_range(histogram_of(x), INT8).amax == pytest.approx(127, rel=0.01)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("method", METHODS[1:])
def test_every_method_stays_inside_what_was_seen(method: str, fmt: Format) -> None:
    chooser = chooser_named(method)
    assert chooser is not None
    for x in (heavy_tailed(count=500), np.abs(heavy_tailed(count=500)), -np.ones(5)):
        seen, found = histogram_of(x).range, chooser(histogram_of(x), fmt)
        assert found.minimum <= found.maximum and found.amax <= seen.amax
        assert found.minimum >= min(seen.minimum, 0) and found.maximum <= max(seen.maximum, 0)
        assert found.problem is None


def test_method_names() -> None:
    assert chooser_named("max") is None
    chooser = chooser_named("percentile:99")
    assert chooser is not None
    histogram = histogram_of(heavy_tailed())
    assert chooser(histogram, INT8) == percentile_range(histogram, INT8, percentile=99.0)
    for wrong in ("maximum", "mse:3", "", "max:"):
        with pytest.raises(OptionError, match="choose one of max, percentile, entropy, mse"):
            chooser_named(wrong)
    for wrong in ("percentile:101", "percentile:x", "percentile:0.99", "percentile:nan"):
        with pytest.raises(OptionError, match="above 50 and at most 100"):
            chooser_named(wrong)


@given(
    npst.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6)),
    st.integers(1, 5),
    st.integers(0, 14),
)
def test_counts_of_batches_add_up_to_counts_of_all(x: np.ndarray, parts: int, wider: int) -> None:
    whole, together = Counts(), Counts()
    x = x + 1e-3  # no batch is all 0
    exponent = math.ceil(math.log2(np.abs(x).max())) + wider

    def counted(values: np.ndarray, exponent: int) -> np.ndarray:
        index = np.trunc(values * 2.0**-exponent * BINS).astype(int).clip(1 - BINS, BINS - 1)
        return np.bincount(index % (2 * BINS), minlength=2 * BINS)

    whole.add(counted(x, exponent), exponent)
    for part in np.array_split(x, min(parts, x.size)):
        own = math.ceil(math.log2(np.abs(part).max()))
        together.add(counted(part, own), own)
    together.add(np.zeros(2 * BINS, np.int64), exponent)
    assert together.exponent == whole.exponent
    edges = np.abs(x) * 2.0**-exponent * BINS  # a batch's largest value may lie on an upper edge
    if (edges != np.trunc(edges)).all():
        np.testing.assert_array_equal(together.signed, whole.signed)
    assert together.signed.sum() == whole.signed.sum() == x.size


def test_merged_bins() -> None:
    signed = np.zeros(2 * BINS, np.int64)
    signed[[0, 1, 2, 3, BINS - 1]] = [1, 2, 4, 8, 16]
    signed[[-1, -2, -3, 1 - BINS]] = [32, 64, 128, 256]
    twice = merged_bins(signed, 1)
    assert twice[[0, 1, BINS // 2 - 1]].tolist() == [1 + 2 + 32, 4 + 8, 16]
    assert twice[[-1, 1 - BINS // 2]].tolist() == [64 + 128, 256]
    assert merged_bins(signed, 12)[0] == merged_bins(signed, 99)[0] == signed.sum()


def test_range_problems() -> None:
    assert Range(0.0, 0.0).problem is Problem.ZERO
    assert EMPTY.problem is Problem.NEVER_SEEN and EMPTY.amax == 0.0
    assert Range(0.0, np.inf).problem is Problem.NOT_FINITE
    assert Range(np.nan, np.nan).problem is Problem.NOT_FINITE
    assert Range(-3.0, 2.0).amax == 3.0 and Range(-3.0, 2.0).problem is None
    assert EMPTY.union(Range(1.0, 2.0)) == Range(1.0, 2.0)
    assert Range(-1.0, 0.5).union(Range(1.0, 2.0)) == Range(-1.0, 2.0)
    assert np.isnan(Range(1.0, 2.0).union(Range(np.nan, np.nan)).maximum)
