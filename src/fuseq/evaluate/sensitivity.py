"""What each region's quantization does to the outputs, alone and in company, beside what it saves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class RegionSensitivity:
    """One region.

    Attributes:
        region: Its name.
        pattern: What it is.
        alone: Noise power over signal power at the outputs when nothing else is quantized.
        company: How much of it goes away when this region alone returns to float: the error of the
            whole plan less that of the plan without the region. Negative where errors cancel.
        saved_us: Predicted microseconds that quantizing it saves, its equal part of kernels that it
            shares; None where nothing compiles here.
    """

    region: str
    pattern: str
    alone: float
    company: float
    saved_us: float | None

    @property
    def alone_db(self) -> float:
        """Signal to noise at the outputs, decibels, when nothing else is quantized."""
        return decibels(self.alone)


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """All regions of a plan, the most harmful for what they save first.

    Attributes:
        regions: Ranked by :func:`ranked`.
        whole: Error of the whole plan: noise power over signal power.
        cosine: Mean cosine of the whole plan's outputs to the float model's, the least output.
        samples: Samples that outputs were compared on.
        float_us: Predicted microseconds of the float engine; None where nothing compiles here.
        quantized_us: The same of the whole plan's engine.
        notes: What the user should know.
    """

    regions: tuple[RegionSensitivity, ...]
    whole: float
    cosine: float
    samples: int
    float_us: float | None
    quantized_us: float | None
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """For ``--json``; numbers that are not finite become None."""
        return {
            "whole": _finite(self.whole),
            "whole_sqnr_db": _finite(decibels(self.whole)),
            "cosine": _finite(self.cosine),
            "samples": self.samples,
            "float_us": self.float_us,
            "quantized_us": self.quantized_us,
            "regions": [
                {
                    **dataclasses.asdict(region),
                    "alone": _finite(region.alone),
                    "company": _finite(region.company),
                    "alone_sqnr_db": _finite(region.alone_db),
                }
                for region in self.regions
            ],
            "notes": list(self.notes),
        }


def decibels(noise_ratio: float) -> float:
    """``-10 log10`` of noise over signal; infinite for no noise."""
    if noise_ratio == 0:
        return math.inf
    return -10 * math.log10(noise_ratio) if math.isfinite(noise_ratio) else -math.inf


def ranked(regions: Sequence[RegionSensitivity]) -> tuple[RegionSensitivity, ...]:
    """The order in which to give regions back to float: most error for each microsecond saved.

    The error is the larger of both measures. A region that saves nothing comes first, by its error;
    without predictions the error alone counts.
    """

    def price(region: RegionSensitivity) -> tuple[bool, float]:
        error = max(region.alone, region.company)
        if region.saved_us is None:
            return (False, -error)
        if region.saved_us <= 0:
            return (False, -error)
        return (True, -error / region.saved_us)

    return tuple(sorted(regions, key=lambda region: (*price(region), region.region)))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
