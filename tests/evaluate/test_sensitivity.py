"""Ranking, and numbers that JSON can hold."""

from __future__ import annotations

import json
import math

import pytest

from fuseq.evaluate.sensitivity import RegionSensitivity, Sensitivity, decibels, ranked


def _region(name: str, alone: float, saved_us: float | None) -> RegionSensitivity:
    return RegionSensitivity(name, "linear", alone, alone / 2, saved_us)


def test_what_saves_nothing_comes_first_then_error_for_each_microsecond() -> None:
    regions = [
        _region("cheap", 1e-3, 10.0),
        _region("dear", 1e-3, 1.0),
        _region("useless", 1e-6, -2.0),
    ]
    assert [r.region for r in ranked(regions)] == ["useless", "dear", "cheap"]


def test_without_predictions_the_error_decides() -> None:
    regions = [_region("a", 1e-5, None), _region("b", 1e-2, None)]
    assert [r.region for r in ranked(regions)] == ["b", "a"]


def test_company_counts_where_it_is_worse() -> None:
    hidden = RegionSensitivity("hidden", "linear", 1e-6, 1e-2, 1.0)
    assert [r.region for r in ranked([_region("a", 1e-3, 1.0), hidden])] == ["hidden", "a"]


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.01, 20.0), (1.0, 0.0), (0.0, math.inf), (math.inf, -math.inf)]
)
def test_decibels(ratio: float, expected: float) -> None:
    assert decibels(ratio) == pytest.approx(expected)


def test_numbers_are_json() -> None:
    found = Sensitivity((_region("a", math.inf, None),), 0.0, 1.0, 4, None, None)
    numbers = json.loads(json.dumps(found.numbers(), allow_nan=False))
    assert numbers["whole_sqnr_db"] is None
    assert numbers["regions"][0]["alone"] is None
