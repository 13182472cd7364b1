"""What a constraint measures and which options make none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fuseq.errors import CalibrationError, OptionError
from fuseq.trials.accuracy import load_data, noise_ratio, store_data
from fuseq.trials.constraint import Constraint, constraint_from

EXACT = {"y": np.array([[1.0, 0.0], [0.0, 2.0]]), "z": np.array([[1.0], [1.0]])}
NEAR = {"y": np.array([[1.0, 1.0], [0.0, 2.0]]), "z": np.array([[1.0], [1.0]])}


def test_cosine_is_the_mean_of_the_worst_output() -> None:
    assert Constraint("cosine", 0.9).score(EXACT, NEAR) == pytest.approx((2**-0.5 + 1) / 2)


def test_top1_looks_at_the_first_output() -> None:
    flipped = {**EXACT, "y": np.array([[0.0, 1.0], [0.0, 2.0]])}
    assert Constraint("top1", 0.9).score(EXACT, flipped) == 0.5


def test_a_metric_may_fall_by_the_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_metric.py").write_text("def total(outputs):\n    return outputs['y'].sum()\n")
    monkeypatch.chdir(tmp_path)
    constraint = constraint_from(None, None, "my_metric:total", 0.5)
    assert constraint is not None
    assert constraint.bar(EXACT) == 2.5
    assert constraint.score(EXACT, NEAR) == 4.0


def test_a_metric_that_gives_no_number_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_metric.py").write_text("def none(outputs):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CalibrationError, match="returned NoneType"):
        Constraint("no_metric:none", None, 0.1).score(EXACT, NEAR)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((0.9, 0.9, None, None), "choose one constraint"),
        ((None, None, "a:b", None), "belong together"),
        ((None, None, None, 0.1), "belong together"),
        ((1.5, None, None, None), "--min-cosine 1.5 is out of range"),
        ((None, 0.0, None, None), "--min-top1 0.0 is out of range"),
        ((None, None, "a:b", -1.0), "--max-drop -1.0 is out of range"),
    ],
)
def test_options_that_cannot_be_meant(
    given: tuple[float | None, float | None, str | None, float | None], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        constraint_from(*given)


def test_no_option_is_no_constraint() -> None:
    assert constraint_from(None, None, None, None) is None


def test_noise_over_signal_is_the_mean_over_outputs() -> None:
    assert noise_ratio(EXACT, NEAR) == pytest.approx((1 / 5 + 0) / 2)
    assert noise_ratio(EXACT, {**NEAR, "z": np.array([[np.nan], [1.0]])}) == float("inf")


def test_samples_are_kept_in_order_and_once(tmp_path: Path) -> None:
    batches = [{"x": np.full((1, 2), n, np.float32)} for n in range(12)]
    file = store_data(tmp_path, batches)
    assert store_data(tmp_path, batches) == file
    assert [float(batch["x"][0, 0]) for batch in load_data(file)] == list(range(12))
