"""The methods that choose the range to keep: one a file, listed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from fuseq.calibration.collectors.entropy import entropy_range
from fuseq.calibration.collectors.max import max_range
from fuseq.calibration.collectors.mse import mse_range
from fuseq.calibration.collectors.percentile import DEFAULT_PERCENTILE, percentile_range
from fuseq.calibration.histogram import Histogram
from fuseq.calibration.ranges import Range
from fuseq.errors import OptionError
from fuseq.formats import Format

Chooser = Callable[[Histogram, Format], Range]

METHODS: tuple[str, ...] = ("max", "percentile", "entropy", "mse")
"""``max`` reads the data once; the others read it twice: the range first, then its histogram."""

_BY_HISTOGRAM: Mapping[str, Chooser] = {
    "percentile": percentile_range,
    "entropy": entropy_range,
    "mse": mse_range,
}


def chooser_named(method: str) -> Chooser | None:
    """How ``method`` chooses a range from a histogram; None for ``max``, which needs none.

    Raises:
        OptionError: No method has that name, or the percentile is not in (50, 100].
    """
    name, colon, number = method.partition(":")
    if name not in METHODS or (colon and name != "percentile"):
        raise OptionError(
            f"--method {method!r} is not a calibration method; choose one of {', '.join(METHODS)}, "
            "or percentile:99.9."
        )
    if not colon:
        return _BY_HISTOGRAM.get(name)
    try:
        percentile = float(number)
    except ValueError:
        percentile = 0.0
    if not 50 < percentile <= 100:
        raise OptionError(
            f"--method {method!r}: the percentile must be above 50 and at most 100; usual values "
            "are 99.9 to 99.999."
        )
    return partial(percentile_range, percentile=percentile)


__all__ = [
    "DEFAULT_PERCENTILE",
    "METHODS",
    "Chooser",
    "chooser_named",
    "entropy_range",
    "max_range",
    "mse_range",
    "percentile_range",
]
