"""``percentile``: saturate a fixed share of the values."""

from __future__ import annotations

import numpy as np

from fuseq.calibration.histogram import Histogram
from fuseq.calibration.ranges import Range
from fuseq.formats import Format

DEFAULT_PERCENTILE = 99.99
"""Wu et al., "Integer Quantization for Deep Learning Inference" (2020), table 5: 99.99 or 99.999
lose least on most networks."""


def percentile_range(
    histogram: Histogram, fmt: Format, *, percentile: float = DEFAULT_PERCENTILE
) -> Range:
    """Keep ``percentile`` percent of the values.

    1. Symmetric format: ``percentile`` percent of ``|x|`` lie within the threshold.
    2. Asymmetric format: half of the rest is cut from either end.
    A threshold lies at most one bin (amax / 2048 or less) above the exact percentile, and never below one
    bin, so that a tensor of nearly nothing but zeros keeps a scale.
    """
    keep = percentile / 100
    if fmt.symmetric:
        return histogram.range.clipped(_quantile(histogram.magnitudes, keep, histogram.width))
    signed = np.concatenate([histogram.negative[::-1], histogram.positive])
    cut = (1 - keep) / 2
    middle = histogram.bins * histogram.width
    low = middle - _quantile(signed[::-1], 1 - cut, histogram.width)
    high = _quantile(signed, 1 - cut, histogram.width) - middle
    return histogram.range.within(min(low, -histogram.width), max(high, histogram.width))


def _quantile(counts: np.ndarray, share: float, width: float) -> float:
    """Where ``share`` of the counts lies below, linear within a bin; bin 0 begins at 0."""
    wanted = share * float(counts.sum())
    below = np.cumsum(counts)
    index = int(np.searchsorted(below, wanted))
    index = min(index, counts.size - 1)
    inside = float(counts[index])
    rest = wanted - float(below[index] - counts[index])
    return float(max((index + (rest / inside if inside else 1.0)) * width, width))
