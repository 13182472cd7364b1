"""Rounding, biases and smoothing in a search: the model that it hands out, and what a constraint judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import fuseq
from fuseq.evaluate.running import run_all
from fuseq.options import QuantizeOptions
from fuseq.searching import Searched, SearchOptions, search
from fuseq.trials import finishing
from fuseq.trials.constraint import Constraint
from tests.graphs import from_text, named, normal


def _net() -> ir.Model:
    """Two convolutions whose inputs have much in common, behind them a normalization and a linear layer."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 64, 28, 28] x) => (float[N, 1024] y) {
      c = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)
      r = Relu(c)
      d = Conv <pads = [1, 1, 1, 1]> (r, w1, b1)
      p = GlobalAveragePool(d)
      f = Flatten(p)
      n = LayerNormalization <axis = -1> (f, gamma, beta)
      y = MatMul(n, w2) }"""
    gamma = np.ones(64, np.float32)
    gamma[3] = 40
    return named(
        from_text(
            text, w0=normal(64, 64, 3, 3, seed=1), b0=normal(64, seed=2),
            w1=normal(64, 64, 3, 3, seed=3), b1=normal(64, seed=4),
            gamma=gamma, beta=normal(64, seed=7), w2=normal(64, 1024, seed=5),
        )
    )  # fmt: skip


def _data(seed: int) -> list[dict[str, np.ndarray]]:
    mix = normal(3, 64, seed=9, scale=1.0)
    draws = normal(4, 28, 28, 3, seed=seed, scale=1.0) @ mix + 0.5
    return [{"x": np.ascontiguousarray(draws.transpose(0, 3, 1, 2))}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("finishing") / "net.onnx"
    fuseq.save(_net(), file)
    return file


def _options(**more: Any) -> QuantizeOptions:
    return QuantizeOptions(target="tensorrt:sm80", batch=64, **more)


def _searched(model: Path, tmp_path: Path, least: float | None = None, **more: Any) -> Searched:
    constraint = None if least is None else Constraint("cosine", least)
    how = SearchOptions(trials=4, executor="serial", cache=str(tmp_path), constraint=constraint)
    return search(model, calib=_data(20), options=_options(**more), how=how)


def _stored(model: ir.Model) -> dict[str, np.ndarray]:
    found = model.graph.initializers
    return {name: v.const_value.numpy() for name, v in found.items() if v.const_value is not None}


@pytest.mark.parametrize(
    "more", [{"rounding": "gptq"}, {"bias_correction": True}, {"smooth": 0.5}, {"equalize": True}]
)
def test_the_model_is_that_of_quantize_with_the_plan(
    model: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    found, plain = _searched(model, tmp_path, **more), _searched(model, tmp_path)
    assert found.plan.tensors
    again = fuseq.quantize(model, calib=_data(20), options=_options(**more), plan=found.plan)
    ours, theirs = _stored(found.model), _stored(again.model)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name])
    before = _stored(plain.model)
    assert any(
        name not in before or not np.array_equal(array, before[name])
        for name, array in ours.items()
    )


def test_smoothing_and_rounding_bring_the_outputs_nearer(model: Path, tmp_path: Path) -> None:
    exact = run_all(_net(), _data(50))
    noise = [
        np.square(run_all(found.model, _data(50), optimized=False, in_fp32=True) - exact).sum()
        for found in (
            _searched(model, tmp_path, smooth=0.5, rounding="gptq"), _searched(model, tmp_path)
        )
    ]  # fmt: skip
    assert noise[0] < 0.5 * noise[1]


def test_a_constraint_judges_rounded_weights(model: Path, tmp_path: Path) -> None:
    """The fastest plan misses the bar with weights rounded to nearest, and keeps it with better ones."""
    plain = _searched(model, tmp_path, least=0.5)
    better = _searched(model, tmp_path, least=0.5, rounding="gptq", bias_correction=True)
    assert plain.tradeoff is not None
    assert better.tradeoff is not None
    assert better.tradeoff.unconstrained.plan.tensors == plain.tradeoff.unconstrained.plan.tensors
    assert better.tradeoff.unconstrained.noise < 0.9 * plain.tradeoff.unconstrained.noise
    assert any("with corrected biases" in note for note in better.notes)
    assert list(tmp_path.glob("rounded-*.npz"))


def test_biases_that_would_miss_the_bar_stay(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "_score", lambda *_: 0.1)
    found = _searched(model, tmp_path, least=0.5, bias_correction=True)
    plain = _searched(model, tmp_path, least=0.5)
    assert any("misses 0.50000: biases stay as they were" in note for note in found.notes)
    for name, array in _stored(plain.model).items():
        np.testing.assert_array_equal(array, _stored(found.model)[name])
