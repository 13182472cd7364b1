"""What calibration learns about a tensor: the range of its values, or why it has none."""

from __future__ import annotations

import dataclasses
import enum
import math


class Problem(enum.Enum):
    """Why a range gives no scale; the tensor stays in float and is named to the user."""

    NEVER_SEEN = "never seen"
    """The tensor is not in the main graph, is inside a branch, or had no element in any batch."""

    ZERO = "always 0"
    NOT_FINITE = "not finite"


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of one tensor over all batches, before or after clipping by a method.

    A tensor that cannot be negative by its operator (Relu, Sigmoid, Softmax, Clip from 0) has
    ``minimum`` 0 without being looked at, because every format represents 0 anyway.

    Attributes:
        minimum: Smallest value, +inf when no value was seen.
        maximum: Largest value, -inf when no value was seen.
    """

    minimum: float
    maximum: float

    @property
    def amax(self) -> float:
        """Largest magnitude; 0 when no value was seen."""
        if self.minimum > self.maximum:
            return 0.0
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def problem(self) -> Problem | None:
        """Why no scale can come of it, or None."""
        if self.minimum > self.maximum:
            return Problem.NEVER_SEEN
        if not (math.isfinite(self.minimum) and math.isfinite(self.maximum)):
            return Problem.NOT_FINITE
        return Problem.ZERO if self.amax == 0 else None

    def union(self, other: Range) -> Range:
        """Smallest range that holds both; NaN stays NaN."""
        if math.isnan(other.minimum) or math.isnan(other.maximum):
            return other
        return Range(min(self.minimum, other.minimum), max(self.maximum, other.maximum))

    def within(self, low: float, high: float) -> Range:
        """The range after its values saturate at ``low`` and ``high``."""
        return Range(min(max(self.minimum, low), high), max(min(self.maximum, high), low))

    def clipped(self, threshold: float) -> Range:
        """The range after its values saturate at ``-threshold`` and ``threshold``."""
        return self.within(-threshold, threshold)


EMPTY = Range(math.inf, -math.inf)
"""The range of no value."""
