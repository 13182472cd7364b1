"""Counts of a tensor's values in equal bins, from which a method chooses the range to keep."""

from __future__ import annotations

import dataclasses

import numpy as np

from fuseq.calibration.ranges import Range

BINS = 2048
"""Bins of each sign. 2048 is the number of NVIDIA's "8-bit Inference with TensorRT" (GTC 2017)."""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of both signs over ``|x| <= amax``.

    Bin k of ``positive`` counts ``k <= x / width < k + 1``, the same bin of ``negative`` counts
    ``k <= -x / width < k + 1`` with k >= 1; what lies in ``-width < x < width`` is in bin 0 of
    ``positive``. The last bins hold amax itself too.

    Attributes:
        positive: int64, shape ``(BINS,)``.
        negative: int64, shape ``(BINS,)``.
        range: The values' true range.
    """

    positive: np.ndarray
    negative: np.ndarray
    range: Range

    @property
    def amax(self) -> float:
        """Upper edge of the last bin."""
        return self.range.amax

    @property
    def width(self) -> float:
        """Width of one bin, in the tensor's unit."""
        return self.amax / BINS

    @property
    def magnitudes(self) -> np.ndarray:
        """Counts of ``|x|``, int64, shape ``(BINS,)``."""
        return np.asarray(self.positive + self.negative)

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.positive.sum() + self.negative.sum())
