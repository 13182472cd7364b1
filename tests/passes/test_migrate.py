"""Ranges move from a LayerNorm into the weights behind it, and the float model's outputs stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import fuseq
from fuseq.errors import OptionError
from fuseq.evaluate.running import run_all
from fuseq.passes.migrate import migratable, migrate
from tests.graphs import from_text, named, normal


def _net(more: str = "", out: str = "y") -> ir.Model:
    """A LayerNorm whose scale has outliers, read by a MatMul and a transposed Gemm."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 64] x) => (float[N, 64] {out}) {{
      n = LayerNormalization <axis = -1> (x, g, b)
      a = MatMul(n, w0)
      c = Gemm <transB = 1> (n, w1, c1)
      r = Relu(c)
      y = Add(a, r) {more} }}"""
    scale = np.ones(64, np.float32)
    scale[[3, 40]] = 60.0
    return named(
        from_text(
            text, g=scale, b=normal(64, seed=1), w0=normal(64, 64, seed=2),
            w1=normal(64, 64, seed=3), c1=normal(64, seed=4),
        )
    )  # fmt: skip


X = [{"x": normal(64, 64, seed=5, scale=1.0)}]


def _array(model: ir.Model, name: str) -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return np.asarray(tensor.numpy(), dtype=np.float64)


def test_the_papers_factors_and_the_outputs_stay() -> None:
    model = _net()
    before = run_all(model, X)
    maxima = np.geomspace(0.5, 50, 64)
    (note,) = migrate(model, {"n": maxima}, 0.5)
    assert note.nodes == ("n_n",)
    old = _net()
    weights = np.maximum(np.abs(_array(old, "w0")).max(1), np.abs(_array(old, "w1")).max(0))
    factor = np.sqrt(maxima / weights)
    np.testing.assert_allclose(_array(model, "g_smoothed"), _array(old, "g") / factor, rtol=1e-6)
    np.testing.assert_allclose(_array(model, "b_smoothed"), _array(old, "b") / factor, rtol=1e-6)
    np.testing.assert_allclose(_array(model, "w0"), _array(old, "w0") * factor[:, None], rtol=1e-6)
    np.testing.assert_allclose(_array(model, "w1"), _array(old, "w1") * factor, rtol=1e-6)
    assert np.abs(run_all(model, X) - before).max() <= 1e-5 * np.abs(before).max()


def test_a_scale_that_two_normalizations_read_gets_copies() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 64] x) => (float[N, 64] y) {
      n = LayerNormalization <axis = -1> (x, g)
      a = MatMul(n, w0)
      m = LayerNormalization <axis = -1> (a, g)
      y = MatMul(m, w1) }"""
    weights = {"w0": normal(64, 64, seed=2), "w1": normal(64, 64, seed=3)}
    model = named(from_text(text, g=np.ones(64, np.float32), **weights))
    before = run_all(model, X)
    (note,) = migrate(model, {"n": np.geomspace(0.5, 50, 64), "m": np.geomspace(9, 1, 64)}, 0.7)
    assert note.nodes == ("n_n", "n_m")
    assert "g" not in model.graph.initializers
    assert np.abs(run_all(model, X) - before).max() <= 1e-5 * np.abs(before).max()


@pytest.mark.parametrize("more", ["z = Add(y, n)", "z = MatMul(y, w0)", "z = MatMul(x, n)"])
def test_what_others_read_is_left_alone(more: str) -> None:
    assert not list(migratable(_net(more, "z").graph))


def test_quantize_comes_nearer_by_it() -> None:
    exact = run_all(_net(), X)
    noise = []
    for strength in (0.5, None):
        options = fuseq.QuantizeOptions(policy="full", batch=64, precision="fp32", smooth=strength)
        model = fuseq.quantize(_net(), calib=X, options=options).model
        noise.append(np.square(run_all(model, X, optimized=False) - exact).sum())
    assert noise[0] < 0.5 * noise[1]


def test_a_strength_beyond_one_is_refused() -> None:
    with pytest.raises(OptionError, match="--smooth 1.5 is no strength"):
        fuseq.QuantizeOptions(smooth=1.5)
