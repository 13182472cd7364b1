"""A user's metric ``module:function`` on both sides.

The function is called once for each side with an iterator of ``(inputs, outputs)``, one pair of dicts
of arrays a batch, in the order of the data, and returns one number:

    def accuracy(batches):
        hits = [outputs["logits"].argmax(1) == next(labels) for _, outputs in batches]
        return np.concatenate(hits).mean()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from fuseq.calibration.batches import Batch, Source
from fuseq.calibration.functions import function_named
from fuseq.errors import OptionError
from fuseq.evaluate.compare_side import Side
from fuseq.report.document_closeness import MetricRow

Metric = Callable[[Iterator[tuple[Batch, dict[str, np.ndarray]]]], Any]


def metric_row(metric: str | Metric, sides: tuple[Side, Side], source: Source) -> MetricRow:
    """Run the metric on both sides.

    Raises:
        CalibrationError: ``module:function`` cannot be imported.
        OptionError: It does not return a number.
    """
    function: Any = function_named(metric, "--metric") if isinstance(metric, str) else metric
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    first, second = (_number(function(_pairs(side, source)), name) for side in sides)
    return MetricRow(name, first, second)


def _pairs(side: Side, batches: Iterable[Batch]) -> Iterator[tuple[Batch, dict[str, np.ndarray]]]:
    run = side.open(side.outputs, 0)
    for batch in batches:
        yield batch, dict(zip(side.outputs, run(batch), strict=True))


def _number(value: Any, name: str) -> float | None:
    """The metric's number; None for NaN and infinity, which a document does not hold."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"--metric {name}: returned {str(value)[:60]!r}; return one number."
        ) from error
    return number if math.isfinite(number) else None
