"""A calibration source: batches of named arrays that can be read more than once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

Batch: TypeAlias = dict[str, np.ndarray]
"""One array for each model input, of the input's dtype, in a shape that the model takes."""

_KEPT_BYTES = 64 * 2**20
"""Batches that are dear to make (decoded images, a user's function) are kept for another pass up to
here; above it they are made again, so that memory does not grow with their number."""


@dataclasses.dataclass(eq=False)
class Source:
    """Batches that fit one model, the same in every pass.

    Attributes:
        description: What it is, for reports: ``16 images of photos/``.
        make: Begins a pass over the batches.
        length: Number of batches; None until a pass has counted them.
        notes: Sentences for the user: casts, padding, what was ignored. Reading adds to it.
        keep: Keep batches for another pass while they are few.
    """

    description: str
    make: Callable[[], Iterator[Batch]]
    length: int | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    keep: bool = False
    _kept: list[Batch] | None = dataclasses.field(default=None, init=False, repr=False)

    def __iter__(self) -> Iterator[Batch]:
        """Go through the batches once.

        Raises:
            CalibrationError: A batch does not fit the model, or cannot be read.
        """
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Batch] | None = [] if self.keep else None
        size, count = 0, 0
        for batch in self.make():
            count += 1
            size += sum(array.nbytes for array in batch.values())
            if kept is not None:
                if size <= _KEPT_BYTES:
                    kept.append(batch)
                else:
                    kept = None
            yield batch
        self.length = count
        self._kept = kept

    def note(self, sentence: str) -> None:
        """Add a note once."""
        if sentence not in self.notes:
            self.notes.append(sentence)
