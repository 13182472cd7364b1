"""Cut arrays along axis 0 into batches of a size that the model takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fuseq.calibration.batches import Batch
from fuseq.errors import CalibrationError
from fuseq.model import InputSpec

_ELEMENTS_PER_BATCH = 1 << 18
_SAMPLES_PER_BATCH = 8
"""Small batches run fastest here: activations stay in the cache, and each core has a batch of its
own. A 224 x 224 image goes alone; samples under 32,768 elements go eight at once."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """How arrays are cut: ``count`` pieces, with ``rows`` of axis 0 each.

    Attributes:
        count: Number of batches.
        rows: Rows in one batch, by input name; an input of rank 0 is absent and goes into each.
        total: Rows that are used, by input name.
        is_fixed: The model takes no other number of rows, so a short last batch is padded.
    """

    count: int
    rows: Mapping[str, int]
    total: Mapping[str, int]
    is_fixed: bool = False

    @property
    def is_padded(self) -> bool:
        """The last batch repeats its rows."""
        return self.is_fixed and any(self.total[name] % rows for name, rows in self.rows.items())

    def limited(self, samples: int | None) -> Cut:
        """The cut that stops when ``samples`` rows of the first input are in; fixed batches stay whole."""
        first = next(iter(self.rows), None)
        if samples is None or first is None:
            return self
        count = min(self.count, math.ceil(samples / self.rows[first]))
        kept = {name: min(self.total[name], rows * count) for name, rows in self.rows.items()}
        if not self.is_fixed and len(set(self.rows.values())) == 1:
            kept = {name: min(size, samples) for name, size in kept.items()}
        return Cut(count, self.rows, kept, self.is_fixed)


def cut_for(shapes: Mapping[str, Sequence[int]], specs: Sequence[InputSpec], where: str) -> Cut:
    """Choose how arrays of ``shapes`` are cut into batches.

    1. Inputs whose axis 0 is fixed get exactly that many rows; too few at the end are repeated.
    2. Where axis 0 is free, all inputs have the same number of rows, and a batch takes few.
    3. Where free inputs have different symbols and lengths, all is one batch.

    Raises:
        CalibrationError: The inputs have different numbers of samples.
    """
    total = {name: shape[0] for name, shape in shapes.items() if len(shape) > 0}
    fixed = {
        spec.name: spec.shape[0]
        for spec in specs
        if spec.shape and isinstance(spec.shape[0], int) and spec.name in total
    }
    if not fixed:
        return _cut_free(shapes, total, specs, where)
    counts = {name: math.ceil(total[name] / rows) for name, rows in fixed.items()}
    count = max(counts.values())
    rows = {name: fixed.get(name, size // count) for name, size in total.items()}
    uneven = [name for name in total if name not in fixed and total[name] % count]
    if len(set(counts.values())) > 1 or uneven:
        raise CalibrationError(
            f"{where}: the inputs make different numbers of batches: "
            + ", ".join(f"{name} has {size} rows" for name, size in total.items())
            + f", and the model takes {fixed}. Give each input the same number of samples."
        )
    return Cut(count, rows, total, is_fixed=True)


def samples_per_batch(elements: int) -> int:
    """How many samples of ``elements`` values go into a batch of a free size."""
    return min(max(_ELEMENTS_PER_BATCH // max(elements, 1), 1), _SAMPLES_PER_BATCH)


def pieces(cut: Cut, read: Callable[[str, int, int], np.ndarray]) -> Iterator[Batch]:
    """Yield the batches; ``read(name, start, stop)`` gives rows of an input, in order of ``start``.

    Inputs of rank 0 are left to the caller.
    """
    for number in range(cut.count):
        batch: Batch = {}
        for name, rows in cut.rows.items():
            start = number * rows
            stop = min(start + rows, cut.total[name])
            batch[name] = repeated(read(name, start, stop), rows if cut.is_fixed else stop - start)
        yield batch


def repeated(array: np.ndarray, rows: int) -> np.ndarray:
    """Repeat ``array`` along axis 0 until it has ``rows`` rows; shape ``(n, ...) -> (rows, ...)``."""
    if array.shape[0] == rows:
        return array
    return np.asarray(np.take(array, np.arange(rows) % array.shape[0], axis=0))


def padding_note(where: str) -> str:
    """The sentence that tells of a padded batch."""
    return (
        f"{where}: the last batch repeats samples, because the model's batch size is fixed; ranges "
        "do not change by it."
    )


def _cut_free(
    shapes: Mapping[str, Sequence[int]],
    total: Mapping[str, int],
    specs: Sequence[InputSpec],
    where: str,
) -> Cut:
    if not total:
        return Cut(1, {}, {})
    if len(set(total.values())) > 1:
        symbols = [spec.shape[0] for spec in specs if spec.shape and spec.name in total]
        if len(set(symbols)) == len(symbols):
            return Cut(1, dict(total), dict(total))
        raise CalibrationError(
            f"{where}: the inputs have different numbers of samples: "
            + ", ".join(f"{name} has {size}" for name, size in total.items())
            + ". Give each input the same number along axis 0."
        )
    samples = next(iter(total.values()))
    elements = max(math.prod(shape[1:]) for shape in shapes.values())
    rows = min(samples_per_batch(elements), samples)
    return Cut(math.ceil(samples / rows), dict.fromkeys(total, rows), dict(total))
