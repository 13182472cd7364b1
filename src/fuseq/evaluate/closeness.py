"""How close the outputs of a quantized model are to those of its float model.

Every measure takes two arrays of the same shape, the float model's first: [N, ...], one row a
sample, any real dtype. Rows are flattened to [N, D] and computed in float64. Values that are not
finite are never counted as close: cosine and SQNR become NaN, agreements count the row as a miss.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fuseq.errors import ModelError


@dataclasses.dataclass(frozen=True)
class Closeness:
    """Every measure of one pair of outputs.

    Attributes:
        samples: N, the number of rows.
        cosine_mean: Mean over rows of :func:`cosine`.
        cosine_min: The least of them.
        sqnr_db: :func:`sqnr_db` of all values together.
        top1: Share of rows with the same largest value, 0 to 1 (:func:`top_k_agreement`, k = 1).
        top5: Share of rows whose largest value is among the other's five largest.
        nearest: Share of rows with the same nearest other row (:func:`nearest_agreement`); NaN
            when there are fewer than three rows, where every answer agrees.
    """

    samples: int
    cosine_mean: float
    cosine_min: float
    sqnr_db: float
    top1: float
    top5: float
    nearest: float


def closeness(reference: np.ndarray, other: np.ndarray) -> Closeness:
    """All measures of ``other`` [N, ...] against ``reference`` of the same shape.

    Raises:
        ModelError: The shapes differ, or there is no row.
    """
    exact, near = _rows(reference, other)
    cosines = cosine(exact, near)
    return Closeness(
        samples=len(exact),
        cosine_mean=float(cosines.mean()),
        cosine_min=float(cosines.min()),
        sqnr_db=sqnr_db(exact, near),
        top1=top_k_agreement(exact, near, 1),
        top5=top_k_agreement(exact, near, 5),
        nearest=nearest_agreement(exact, near) if len(exact) > 2 else math.nan,
    )


def cosine(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Cosine of the angle between rows: [N, ...] twice to float64 [N].

    ``a . b / (|a| |b|)``; two rows of zeros have 1, a row of zeros beside another has 0.

    Raises:
        ModelError: The shapes differ, or there is no row.
    """
    exact, near = _rows(reference, other)
    left, right = _unit(exact), _unit(near)
    both_zero = ~exact.any(axis=1) & ~near.any(axis=1)
    cosines: np.ndarray = np.where(both_zero, 1.0, np.clip((left * right).sum(axis=1), -1.0, 1.0))
    return cosines


def sqnr_db(reference: np.ndarray, other: np.ndarray) -> float:
    """Signal to quantization noise of all values together, in decibels.

    ``10 log10(sum(a^2) / sum((a - b)^2))``; infinite when both are equal, minus infinite when
    ``reference`` is all zero and ``other`` is not.

    Raises:
        ModelError: The shapes differ, or there is no row.
    """
    exact, near = _rows(reference, other)
    largest = float(np.abs(exact).max(initial=0.0))
    if not (np.isfinite(exact).all() and np.isfinite(near).all()):
        return math.nan
    # The ratio does not change with the unit, and squares of large values would overflow.
    unit = largest or 1.0
    signal = float(np.square(exact / unit).sum())
    noise = float(np.square((exact - near) / unit).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def top_k_agreement(reference: np.ndarray, other: np.ndarray, k: int) -> float:
    """Share of rows whose largest value of ``reference`` is among the ``k`` largest of ``other``.

    Equal values of ``other`` are taken in order of their index, as an arg-max takes them.

    Raises:
        ModelError: The shapes differ, or there is no row.
    """
    exact, near = _rows(reference, other)
    best = exact.argmax(axis=1)
    largest = np.argsort(-near, axis=1, kind="stable")[:, :k]
    hits = (largest == best[:, None]).any(axis=1)
    return float((hits & _finite(exact) & _finite(near)).mean())


def nearest_agreement(reference: np.ndarray, other: np.ndarray) -> float:
    """Share of rows whose nearest other row, by cosine, is the same in both.

    What search with embeddings [N, D] would return: each row asks, all others answer.

    Raises:
        ModelError: The shapes differ, or there are fewer than two rows.
    """
    exact, near = _rows(reference, other)
    if len(exact) < 2:
        raise ModelError(f"{len(exact)} sample has no other to be near to; give at least two.")
    same = _nearest(exact) == _nearest(near)
    return float((same & _finite(exact) & _finite(near)).mean())


def _nearest(rows: np.ndarray) -> np.ndarray:
    """Index of each row's nearest other row, [N]."""
    units = _unit(rows)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    indices: np.ndarray = cosines.argmax(axis=1)
    return indices


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1; rows of zeros stay. Divided by the largest value first: no overflow."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(invalid="ignore"):  # infinity over infinity: NaN is the answer
        scaled = rows / np.where(largest == 0, 1.0, largest)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    units: np.ndarray = scaled / np.where(length == 0, 1.0, length)
    return units


def _finite(rows: np.ndarray) -> np.ndarray:
    finite: np.ndarray = np.isfinite(rows).all(axis=1)
    return finite


def _rows(reference: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 [N, D]."""
    if reference.shape != other.shape:
        raise ModelError(
            f"outputs of shapes {list(reference.shape)} and {list(other.shape)} cannot be "
            "compared; run both models on the same inputs and compare the same output."
        )
    if reference.ndim == 0 or reference.size == 0:
        raise ModelError(f"outputs of shape {list(reference.shape)} hold no sample; give data.")
    rows = len(reference)
    return (
        np.asarray(reference, dtype=np.float64).reshape(rows, -1),
        np.asarray(other, dtype=np.float64).reshape(rows, -1),
    )
