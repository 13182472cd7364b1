"""``mse``: the range whose quantization changes the values least, in mean square.

Source of the search: Sung et al., "Resiliency of Deep Neural Networks under Quantization" (2015),
and Nagel et al., "A White Paper on Neural Network Quantization" (2021), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuseq.calibration.formulas import activation_scale
from fuseq.calibration.histogram import Histogram
from fuseq.calibration.ranges import Range
from fuseq.formats import Format

_OCTAVE_STEPS = 6
_OCTAVES = 7
"""First search: factors 2**(-k/6) down to 1/128, where INT8 would keep a single bin a level."""

_FINE_STEPS = 12
"""Second search: equal steps between the neighbours of the best factor, about 2 % of it each."""

Errors = Callable[[np.ndarray, np.ndarray], np.ndarray]


def mse_range(histogram: Histogram, fmt: Format) -> Range:
    """Return the range of least squared error over the histogram's bin centres.

    1. Symmetric format: one factor on ``amax``.
    2. Asymmetric format: a factor on the upper end, then, if there are negative values, one on
       the lower end.
    Rounding is the format's own: INT8 and UINT8 to integers, FP8 to the values of E4M3.
    """
    values, counts = _filled_bins(histogram)

    def errors(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return squared_errors(values, counts, low, high, fmt)

    low = min(histogram.range.minimum, 0.0)
    high = max(histogram.range.maximum, 0.0)
    if fmt.symmetric:
        amax = histogram.range.amax
        factor = _best_factor(lambda f: errors(-f * amax, f * amax))
        return histogram.range.clipped(factor * amax)
    high *= _best_factor(lambda f: errors(np.full(f.shape, low), f * high))
    if low < 0:
        low *= _best_factor(lambda f: errors(f * low, np.full(f.shape, high)))
    return histogram.range.within(low, high)


def squared_errors(
    values: np.ndarray, counts: np.ndarray, low: np.ndarray, high: np.ndarray, fmt: Format
) -> np.ndarray:
    """Mean squared error of each candidate range.

    Args:
        values: Shape ``(B,)``, and ``counts`` the same.
        low: Lower ends, shape ``(C,)``, and ``high`` the upper ends.
        fmt: The format that rounds.

    Returns:
        float64, shape ``(C,)``.
    """
    scale, zero_point = activation_scale(low, high, fmt)
    scales = scale[:, None]
    ratio = values[None, :].astype(np.float32) / scales
    if fmt.is_float:
        np.clip(ratio, fmt.qmin, fmt.qmax, out=ratio)
        rounded = ratio.astype(fmt.dtype.numpy()).astype(np.float32)
    else:
        zeros = zero_point[:, None].astype(np.float32)
        rounded = np.clip(np.rint(ratio), fmt.qmin - zeros, fmt.qmax - zeros)
    difference = rounded * scales - values[None, :].astype(np.float32)
    return np.asarray((difference.astype(np.float64) ** 2) @ counts / max(counts.sum(), 1))


def _best_factor(errors: Callable[[np.ndarray], np.ndarray]) -> float:
    """The factor of least error in [1/128, 1]; the largest of equals."""
    coarse = 2.0 ** (-np.arange(_OCTAVE_STEPS * _OCTAVES + 1) / _OCTAVE_STEPS)
    best = int(np.argmin(errors(coarse)))
    above, below = coarse[max(best - 1, 0)], coarse[min(best + 1, coarse.size - 1)]
    fine = np.append(np.linspace(above, below, _FINE_STEPS), coarse[best])
    return float(fine[np.argmin(errors(fine))])


def _filled_bins(histogram: Histogram) -> tuple[np.ndarray, np.ndarray]:
    """Centres and counts of the bins that are not empty; bin 0 stands at 0, where most of it is."""
    centres = (np.arange(histogram.bins) + 0.5) * histogram.width
    centres[0] = 0.0
    values = np.concatenate([-centres[::-1], centres])
    counts = np.concatenate([histogram.negative[::-1], histogram.positive])
    filled = counts > 0
    return values[filled], counts[filled].astype(np.float64)
