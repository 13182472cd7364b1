"""Sums over pieces and batches give the errors that NumPy computes from the whole arrays."""

from __future__ import annotations

import numpy as np
import pytest

from fuseq.errors import ModelError
from fuseq.evaluate.compare_sums import TensorSums


def summed(*pairs: tuple[np.ndarray, np.ndarray]) -> TensorSums:
    whole = TensorSums()
    for a, b in pairs:
        part = TensorSums()
        part.add(a, b)
        whole.merge(part)
    return whole


def pair(size: int = 30_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    a = random.normal(0, 3, (2, size)).astype(np.float32)
    return a, a + random.normal(0, 0.1, a.shape).astype(np.float32)


def test_errors_are_those_of_the_whole_arrays() -> None:
    a, b = pair()
    sums = summed((a[:1], b[:1]), (a[1:], b[1:]))
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    noise = np.linalg.norm(x - y)
    assert sums.relative == pytest.approx(noise / np.linalg.norm(x), rel=1e-12)
    assert sums.sqnr_db == pytest.approx(20 * np.log10(np.linalg.norm(x) / noise), rel=1e-12)
    expected = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    assert sums.cosine == pytest.approx(expected, rel=1e-12)
    assert sums.max_abs == np.abs(x - y).max()
    assert sums.max_rel == np.abs(x - y).max() / np.abs(x).max()
    assert sums.shape == (1, 30_000)
    assert not sums.identical
    assert sums.not_finite == 0


def test_halves_are_read_as_they_are() -> None:
    a, _ = pair(1000)
    half = a.astype(np.float16)
    half[0, :2] = [np.inf, 6e-8]
    wide = half.astype(np.float64)
    assert summed((a, half)) == summed((a, wide))


def test_equal_tensors_are_identical_and_have_no_noise() -> None:
    a, _ = pair(100)
    odd = a.copy()
    odd[0, :3] = [np.nan, np.inf, -np.inf]
    for array in (a, odd):
        sums = summed((array, array.copy()))
        assert sums.identical
        assert (sums.relative, sums.cosine, sums.sqnr_db, sums.max_rel) == (0.0, 1.0, None, 0.0)


def test_masks_drown_nothing() -> None:
    """Attention scores: the reference masks with the lowest float32, the other with the lowest FP16."""
    a, b = pair(1000)
    expected = summed((a[:, 10:], b[:, 10:]))
    a[:, :10], b[:, :10] = np.finfo(np.float32).min, np.finfo(np.float16).min
    masked = summed((a, b))
    assert masked.relative == expected.relative
    assert masked.not_finite == 0
    assert not masked.identical


def test_what_is_not_finite_in_the_other_only_is_counted() -> None:
    a, b = pair(1000)
    a[0, 0] = -np.inf
    b[0, :3] = [-np.inf, np.nan, np.inf]
    assert summed((a, b)).not_finite == 2


def test_values_whose_squares_leave_float32_count() -> None:
    a = np.full((1, 4), 2e25, np.float32)
    assert summed((a, a * np.float32(1.5))).relative == pytest.approx(0.5, rel=1e-6)


def test_a_reference_of_zeros_has_no_relative_error() -> None:
    zeros = np.zeros((1, 4), np.float32)
    sums = summed((zeros, zeros + 1))
    assert (sums.relative, sums.sqnr_db, sums.cosine, sums.max_abs) == (None, None, None, 1.0)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"\[1, 4\] and \[4, 1\]"):
        TensorSums().add(np.zeros((1, 4)), np.zeros((4, 1)))
