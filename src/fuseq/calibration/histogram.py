"""Counts of a tensor's values in equal bins, from which a method chooses the range to keep.

Bins are counted batch by batch within the smallest power of two that holds the batch, so that one
pass over the data is enough and histograms of different batches add up exactly: a range twice as
wide has every two bins merged. Scaling by a power of two is exact in floating point.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fuseq.calibration.ranges import Range

BINS = 4096
"""Bins of each sign up to the power of two. At least half of them lie below the largest value, which
makes the 2048 bins of NVIDIA's "8-bit Inference with TensorRT" (GTC 2017) or more."""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of both signs, up to the largest magnitude.

    Bin k of ``positive`` counts ``k <= x / width < k + 1``, the same bin of ``negative`` counts
    ``k <= -x / width < k + 1`` with k >= 1; what lies in ``-width < x < width`` is in bin 0 of
    ``positive``. The last bin holds the largest magnitude, even where that is its upper edge.

    Attributes:
        positive: int64, shape ``(bins,)``.
        negative: int64, shape ``(bins,)``.
        width: Width of one bin, in the tensor's unit.
        range: The values' true range.
    """

    positive: np.ndarray
    negative: np.ndarray
    width: float
    range: Range

    @property
    def bins(self) -> int:
        """Bins of one sign; the last holds the largest magnitude."""
        return int(self.positive.size)

    @property
    def magnitudes(self) -> np.ndarray:
        """Counts of ``|x|``, int64, shape ``(bins,)``."""
        return np.asarray(self.positive + self.negative)


@dataclasses.dataclass
class Counts:
    """A histogram that grows batch by batch.

    Attributes:
        signed: int64, shape ``(2 * BINS,)``: element k is bin k, element -k is bin k of the
            negative values.
        exponent: Bins reach up to ``2 ** exponent``; None before the first batch.
    """

    signed: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(2 * BINS, dtype=np.int64)
    )
    exponent: int | None = None

    def add(self, signed: np.ndarray, exponent: int) -> None:
        """Add a batch's counts of bins up to ``2 ** exponent``; the wider of both ranges stays."""
        if self.exponent is None:
            self.exponent = exponent
        if exponent > self.exponent:
            self.signed = merged_bins(self.signed, exponent - self.exponent)
            self.exponent = exponent
        self.signed += merged_bins(signed, self.exponent - exponent)

    def histogram(self, seen: Range) -> Histogram:
        """The histogram of values whose range is ``seen``, without the empty bins above it."""
        width = 2.0 ** ((self.exponent or 0) - math.log2(BINS))
        used = min(int(seen.amax / width) + 1, BINS)
        negative = np.zeros(used, dtype=np.int64)
        negative[1:] = self.signed[:-used:-1]
        return Histogram(self.signed[:used].copy(), negative, width, seen)


def merged_bins(signed: np.ndarray, doublings: int) -> np.ndarray:
    """Merge bins for a range ``2 ** doublings`` times as wide; shape ``(2 * BINS,)`` stays."""
    if doublings == 0:
        return signed
    group = 1 << min(doublings, BINS.bit_length() - 1)
    negative = np.zeros(BINS, dtype=np.int64)
    negative[1:] = signed[:BINS:-1]
    positive = signed[:BINS].reshape(-1, group).sum(axis=1)
    negative = negative.reshape(-1, group).sum(axis=1)
    positive[0] += negative[0]
    merged = np.zeros(2 * BINS, dtype=np.int64)
    merged[: positive.size] = positive
    if negative.size > 1:
        merged[1 - negative.size :] = negative[:0:-1]
    return merged
