"""Closeness of one output over batches: errors, row by row cosine, and agreements."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Literal

import numpy as np

from fuseq.evaluate.closeness import cosine, nearest_agreement, top_k_agreement
from fuseq.evaluate.compare_sums import TensorSums
from fuseq.report.document_closeness import OutputRow

Kind = Literal["classes", "embedding", "values"]

_MOST_ROWS = 4096
"""Rows of an embedding that are kept to ask which is nearest: 12 MB of 768 values, twice."""

_EMBEDDING_NAME = re.compile(r"embed|pool|feature", re.IGNORECASE)
_UNIT_TOLERANCE = 1e-3


@dataclasses.dataclass
class OutputSums:
    """What is known of an output so far.

    Attributes:
        name: Of the reference.
        other: Of the other model.
        kind: What the user says it holds; None decides: rows [N, D] are an embedding if the name says
            so or all have length 1, else scores of D classes; everything else is values.
    """

    name: str
    other: str
    kind: Kind | None = None
    sums: TensorSums = dataclasses.field(default_factory=TensorSums)
    samples: int = 0
    _cosines: float = 0.0
    _cosine_min: float = math.inf
    _top1: float = 0.0
    _top5: float = 0.0
    _is_unit: bool = True
    _rows: list[tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=list)

    def add(self, reference: np.ndarray, other: np.ndarray) -> None:
        """Count one batch, [N, ...] twice.

        Raises:
            ModelError: The shapes differ.
        """
        self.sums.add(reference, other)
        exact = reference.reshape(reference.shape[0] if reference.ndim else 1, -1)
        near = other.reshape(exact.shape)
        if exact.size == 0:
            return
        rows = len(exact)
        cosines = cosine(exact, near)
        self.samples += rows
        self._cosines += float(cosines.sum())
        self._cosine_min = float(np.fmin(self._cosine_min, cosines.min()))
        if reference.ndim != 2 or exact.shape[1] < 2:
            return
        self._top1 += rows * top_k_agreement(exact, near, 1)
        self._top5 += rows * top_k_agreement(exact, near, 5)
        lengths = np.linalg.norm(exact.astype(np.float64), axis=1)
        self._is_unit = self._is_unit and bool((np.abs(lengths - 1) < _UNIT_TOLERANCE).all())
        if self.samples <= _MOST_ROWS:
            self._rows.append((np.array(exact), np.array(near)))

    def row(self) -> OutputRow:
        """The numbers of all batches together."""
        kind = self._kind()
        is_classes = kind == "classes"
        count = max(self.samples, 1)
        classes = self.sums.shape[1] if is_classes else 0
        mean = self._cosines / count
        return OutputRow(
            name=self.name,
            other=self.other,
            kind=kind,
            shape=self.sums.shape,
            samples=self.samples,
            identical=self.sums.identical,
            sqnr_db=self.sums.sqnr_db,
            cosine_mean=mean if self.samples and math.isfinite(mean) else None,
            cosine_min=self._cosine_min if math.isfinite(self._cosine_min) else None,
            max_abs=self.sums.max_abs,
            max_rel=self.sums.max_rel,
            relative=self.sums.relative,
            top1=self._top1 / count if is_classes else None,
            top5=self._top5 / count if is_classes and classes > 5 else None,
            nearest=self._nearest() if kind == "embedding" else None,
            not_finite=self.sums.not_finite,
        )

    def _kind(self) -> Kind:
        if len(self.sums.shape) != 2 or self.sums.shape[1] < 2:
            return "values"
        if self.kind is not None:
            return self.kind
        is_embedding = _EMBEDDING_NAME.search(self.name) or self._is_unit
        return "embedding" if is_embedding else "classes"

    def _nearest(self) -> float | None:
        """Share of rows whose nearest other row is the same; None below three, where all agree."""
        if self.samples < 3 or not self._rows:
            return None
        exact, near = (np.concatenate(rows) for rows in zip(*self._rows, strict=True))
        return nearest_agreement(exact, near)
