"""What accuracy a plan must keep: a measure of its outputs and the least that is allowed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from fuseq.calibration.functions import function_named
from fuseq.errors import CalibrationError, OptionError
from fuseq.evaluate.closeness import top_k_agreement
from fuseq.trials.accuracy import least_cosine

Outputs = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Constraint:
    """Larger is better for every measure.

    Attributes:
        measure: ``cosine``: mean over samples of the cosine to the float model's output, of the
            output where it is least. ``top1``: share of samples with the float model's largest value
            in the first output. Else ``module:function``, which gets all outputs by name, [N, ...]
            in the order of the data, and returns a number.
        least: Smallest value allowed; None for ``module:function``.
        max_drop: For ``module:function``: how far it may fall below the float model's.
    """

    measure: str
    least: float | None
    max_drop: float | None = None

    def score(self, exact: Outputs, near: Outputs) -> float:
        """The measure of a plan's outputs.

        Raises:
            CalibrationError: The user's function is missing or returns no number.
        """
        if self.measure == "cosine":
            return least_cosine(exact, near)
        if self.measure == "top1":
            name = next(iter(exact))
            return top_k_agreement(exact[name], near[name], 1)
        return _number(self.measure, function_named(self.measure, "--metric"), near)

    def bar(self, exact: Outputs) -> float:
        """The least that is allowed."""
        if self.least is not None:
            return self.least
        return self.score(exact, exact) - (self.max_drop or 0.0)


def constraint_from(
    min_cosine: float | None, min_top1: float | None, metric: str | None, max_drop: float | None
) -> Constraint | None:
    """Make the constraint that the options ask for; None where they ask for none.

    Raises:
        OptionError: More than one is given, or a value is out of range.
    """
    given = [
        name
        for name, value in (
            ("--min-cosine", min_cosine), ("--min-top1", min_top1), ("--metric", metric),
        )
        if value is not None
    ]  # fmt: skip
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} are given; choose one constraint.")
    if (metric is None) != (max_drop is None):
        raise OptionError("--metric and --max-drop belong together; give both or none.")
    for name, least in (("--min-cosine", min_cosine), ("--min-top1", min_top1)):
        if least is not None and not 0 < least <= 1:
            raise OptionError(f"{name} {least} is out of range; give more than 0, at most 1.")
    if max_drop is not None and not 0 <= max_drop < math.inf:
        raise OptionError(f"--max-drop {max_drop} is out of range; give 0 or more.")
    if metric is not None:
        return Constraint(metric, None, max_drop)
    if min_cosine is not None:
        return Constraint("cosine", min_cosine)
    return Constraint("top1", min_top1) if min_top1 is not None else None


def _number(name: str, function: Callable[[dict[str, np.ndarray]], object], near: Outputs) -> float:
    value = function(dict(near))
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise CalibrationError(
            f"--metric {name}: returned {type(value).__name__}; it must return one number."
        ) from error
    if math.isnan(number):
        raise CalibrationError(f"--metric {name}: returned NaN; it must return one number.")
    return number
