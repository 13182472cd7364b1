"""Measures of closeness against values worked out by hand and a direct NumPy computation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuseq.errors import ModelError
from fuseq.evaluate.closeness import (
    closeness,
    cosine,
    nearest_agreement,
    sqnr_db,
    top_k_agreement,
)


def test_cosine_of_known_angles() -> None:
    reference = np.array([[1, 0], [1, 0], [1, 0], [3, 4]], np.float32)
    other = np.array([[5, 0], [0, 2], [-1, 0], [4, 3]], np.float32)
    np.testing.assert_allclose(cosine(reference, other), [1, 0, -1, 24 / 25], atol=1e-15)


def test_cosine_of_zero_rows() -> None:
    reference = np.array([[0.0, 0.0], [0.0, 0.0]])
    other = np.array([[0.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(cosine(reference, other), [1, 0])


def test_cosine_neither_overflows_nor_vanishes() -> None:
    large = np.array([[3e300, 4e300]])
    small = np.array([[4e-300, 3e-300]])
    np.testing.assert_allclose(cosine(large, small), [24 / 25], rtol=1e-14)


def test_cosine_flattens_what_follows_the_first_axis() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 3, 4, 5))
    dots = [(x * y).sum() / math.sqrt((x**2).sum() * (y**2).sum()) for x, y in zip(a, b)]  # noqa: B905
    np.testing.assert_allclose(cosine(a, b), dots, rtol=1e-12)


def test_sqnr_of_a_tenth_of_the_amplitude_is_20_db() -> None:
    reference = np.array([[10.0, -10.0], [10.0, 10.0]])
    assert sqnr_db(reference, reference + 1.0) == pytest.approx(20.0, abs=1e-12)


def test_sqnr_at_the_ends() -> None:
    ones, zeros = np.ones((2, 2)), np.zeros((2, 2))
    assert sqnr_db(ones, ones) == math.inf
    assert sqnr_db(zeros, zeros) == math.inf
    assert sqnr_db(zeros, ones) == -math.inf
    assert sqnr_db(ones * 1e200, ones * 0.9e200) == pytest.approx(20.0)


def test_top_k_counts_rows_whose_best_is_among_the_k_best() -> None:
    reference = np.array([[0, 1, 2, 3], [9, 1, 2, 3], [0, 8, 2, 3]])
    other = np.array([[0, 1, 2, 9], [5, 6, 2, 3], [7, 1, 9, 8]])
    assert top_k_agreement(reference, other, 1) == pytest.approx(1 / 3)
    assert top_k_agreement(reference, other, 2) == pytest.approx(2 / 3)
    assert top_k_agreement(reference, other, 4) == 1.0


def test_top_k_breaks_ties_by_index() -> None:
    reference = np.array([[1.0, 0.0, 0.0]])
    assert top_k_agreement(reference, np.array([[2.0, 2.0, 0.0]]), 1) == 1.0
    assert top_k_agreement(reference[:, ::-1], np.array([[2.0, 2.0, 2.0]]), 1) == 0.0


def test_nearest_agreement_ignores_the_row_itself() -> None:
    angles = np.radians([0, 10, 90, 95])
    moved = np.radians([0, 60, 90, 95])  # the second leaves the first and joins the third
    reference = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    other = np.stack([np.cos(moved), np.sin(moved)], axis=1)
    assert nearest_agreement(reference, reference * 7) == 1.0
    assert nearest_agreement(reference, other) == pytest.approx(3 / 4)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_values_that_are_not_finite_are_never_close(broken: float) -> None:
    reference = np.array([[3.0, 1.0], [3.0, 1.0], [1.0, 3.0]])
    other = reference.copy()
    other[0, 0] = broken  # an arg-max alone would call this a hit
    found = closeness(reference, other)
    assert found.top1 == pytest.approx(2 / 3)
    assert found.top5 == pytest.approx(2 / 3)
    assert found.nearest <= 2 / 3
    assert math.isnan(found.cosine_mean)
    assert math.isnan(found.sqnr_db)


def test_closeness_of_equal_outputs() -> None:
    outputs = np.random.default_rng(1).normal(size=(6, 3, 4)).astype(np.float16)
    found = closeness(outputs, outputs)
    assert (found.samples, found.top1, found.top5, found.nearest) == (6, 1.0, 1.0, 1.0)
    assert found.cosine_min == pytest.approx(1.0, abs=1e-15)
    assert found.sqnr_db == math.inf


def test_two_rows_have_no_nearest_to_disagree_on() -> None:
    assert math.isnan(closeness(np.eye(2), np.eye(2)).nearest)


def test_refusals_name_the_shapes() -> None:
    with pytest.raises(ModelError, match=r"\[2, 3\] and \[2, 4\]"):
        closeness(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(ModelError, match=r"\[0, 3\] hold no sample"):
        cosine(np.ones((0, 3)), np.ones((0, 3)))
    with pytest.raises(ModelError, match="at least two"):
        nearest_agreement(np.ones((1, 3)), np.ones((1, 3)))
