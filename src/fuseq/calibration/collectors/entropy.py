"""``entropy``: the threshold whose quantized histogram tells least apart from the float one.

Source: S. Migacz, "8-bit Inference with TensorRT", NVIDIA GTC 2017: for every i, the reference is
the first i bins with all outliers added to the last of them, the candidate is the same bins
without outliers merged into the format's levels and spread again over the bins that were not
empty; the threshold is the i with the least Kullback-Leibler divergence. As in NVIDIA's later
calibrators, bin 0 takes the count of bin 1, because zeros quantize without error and ReLU makes
many of them.
"""

from __future__ import annotations

import functools

import numpy as np

from fuseq.calibration.histogram import Histogram
from fuseq.calibration.ranges import Range
from fuseq.formats import Format

_FIRST_PART = 16
"""Fewest bins that a threshold keeps: a sixteenth of all, 128 of 2048 in the source, but not fewer
than there are levels, because below that merging would cost nothing."""

_THRESHOLDS = 256
"""About so many thresholds are tried, at distances of 0.4 % of the largest value."""


def entropy_range(histogram: Histogram, fmt: Format) -> Range:
    """Return the range within the threshold of least divergence.

    1. Symmetric integers: ``qmax + 1`` equal levels of ``|x|`` (128 for INT8).
    2. FP8: the levels of E4M3, each as wide as what rounds to it.
    3. UINT8: 256 levels where no value is negative; else as INT8 on ``|x|``.
    """
    counts = histogram.magnitudes.astype(np.float64)
    counts[0] = counts[min(1, counts.size - 1)]
    bins = histogram.bins
    levels = _levels(fmt, histogram.range.minimum < 0)
    fewest = max(bins // _FIRST_PART, levels.size)
    bins_kept = np.arange(bins, min(fewest, bins) - 1, -max(bins // _THRESHOLDS, 1))
    divergence = divergences(counts, bins_kept, levels)
    if not np.isfinite(divergence).any():
        return histogram.range
    best = int(bins_kept[np.argmin(divergence)])
    return histogram.range if best == bins else histogram.range.clipped(best * histogram.width)


def divergences(counts: np.ndarray, bins_kept: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Divergence of each candidate threshold, in nats; +inf where the candidate loses all.

    With N all counts, M the kept ones, S_k and c_k the sum and the number of non-empty bins of
    level k, and r the outliers, the sum over bins collapses to one over levels:
    ``KL = sum_j P_j log P_j - (sum_k S_k log(S_k / (c_k M)) + r log Q_last) / N``.

    Args:
        counts: Float64 counts of ``|x|``, shape ``(bins,)``.
        bins_kept: Candidates, int, shape ``(C,)``.
        levels: Upper edges of the levels as parts of the threshold, last is 1, shape ``(L,)``.
    """
    total = counts.sum()
    if total == 0:
        return np.full(bins_kept.shape, np.inf)
    edges = np.rint(levels * bins_kept[:, None]).astype(np.int64)
    sums = np.diff(_from_zero(counts)[edges], prepend=0.0)
    filled = np.diff(_from_zero((counts > 0).astype(np.float64))[edges], prepend=0.0)
    kept = sums.sum(axis=1)
    outliers = total - kept
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.log(sums / (filled * kept[:, None]))
        cross = np.where(sums > 0, sums * log_q, 0.0).sum(axis=1)
        # The last bin lies in the last level that is not empty in width.
        last_level = np.argmax(edges == bins_kept[:, None], axis=1)
        last_counts = counts[bins_kept - 1]
        log_q_last = log_q[np.arange(bins_kept.size), last_level]
        cross += np.where(outliers > 0, outliers * log_q_last, 0.0)
        reference = _from_zero(_x_log_x(counts))[bins_kept]
        reference += _x_log_x(last_counts + outliers) - _x_log_x(last_counts)
        divergence = reference / total - np.log(total) - cross / total
    lost = ((outliers > 0) & (last_counts == 0)) | (kept == 0)
    return np.asarray(np.where(lost, np.inf, divergence))


def _levels(fmt: Format, signed: bool) -> np.ndarray:
    """Upper edges of the levels of ``|x|``, as parts of the threshold."""
    if fmt.is_float:
        return _float_levels(fmt)
    count = int(fmt.qmax) + 1
    if not fmt.symmetric and signed:
        count //= 2
    return np.arange(1, count + 1) / count


@functools.cache
def _float_levels(fmt: Format) -> np.ndarray:
    """Middles between neighbours of a float format's values from 0 to qmax, then 1."""
    codes = np.arange(256, dtype=np.uint8).view(fmt.dtype.numpy()).astype(np.float64)
    values = np.unique(codes[(codes >= 0) & (codes <= fmt.qmax)])
    return np.append((values[1:] + values[:-1]) / 2, fmt.qmax) / fmt.qmax


def _from_zero(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values)])


def _x_log_x(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values * np.log(np.maximum(values, 1e-300)), 0.0)
