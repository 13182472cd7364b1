"""Second-order rounding and bias correction, against float64 written out and against nearest."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import fuseq
from fuseq.calibration.layer_inputs import Layer, layer_of
from fuseq.calibration.second_order import (
    DAMPING,
    nearest_on_grid,
    product_error,
    round_second_order,
)
from fuseq.evaluate.running import run_all
from fuseq.formats import FP8, INT8, Format
from tests.graphs import from_text, named, normal


def _correlated(rows: int, width: int) -> np.ndarray:
    """Rows whose columns are mixtures of a quarter as many sources: what activations are like."""
    mixed = normal(rows, width // 4, seed=1, scale=1.0) @ normal(width // 4, width, seed=2)
    return np.asarray(mixed + normal(rows, width, seed=3, scale=0.02), dtype=np.float64)


def _scale(weights: np.ndarray, fmt: Format) -> np.ndarray:
    return fmt.scale_of(np.abs(weights).max(axis=2))


def _written_out(weights: np.ndarray, hessian: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Algorithm 1 for INT8 one column after the other: H^-1 is eliminated, not factored."""
    order = np.argsort(-np.diag(hessian), kind="stable")
    damped = hessian + DAMPING * np.diag(hessian).mean() * np.eye(len(hessian))
    inverse = np.linalg.inv(damped[np.ix_(order, order)])
    left, found = weights[:, order].copy(), np.empty_like(weights)
    for column in range(len(order)):
        steps = np.clip(np.rint(left[:, column] / scale), -128, 127)
        found[:, order[column]] = steps * scale
        error = (left[:, column] - steps * scale) / inverse[column, column]
        left[:, column:] -= np.outer(error, inverse[column, column:])
        gone = np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse = inverse - gone
    return found


def test_it_is_the_papers_algorithm() -> None:
    rows = _correlated(600, 160)  # wider than one block of columns
    weights, hessian = normal(1, 12, 160, seed=4).astype(np.float64), (rows.T @ rows)[None]
    scale = _scale(weights, INT8).astype(np.float64)
    found = round_second_order(weights, hessian, scale, INT8)
    expected = _written_out(weights[0], hessian[0], scale[0])
    steps = np.abs(found[0] - expected) / scale[0][:, None]
    assert (steps > 0.5).mean() < 0.002  # a tie may fall to the other side
    assert np.median(steps) < 1e-4


@pytest.mark.parametrize(("fmt", "at_most"), [(INT8, 0.35), (FP8, 0.6)])
def test_the_error_behind_the_product_is_below_nearest(fmt: Format, at_most: float) -> None:
    rows, fresh = _correlated(800, 64)[:400], _correlated(800, 64)[400:]
    weights = normal(1, 32, 64, seed=4).astype(np.float64)
    scale = _scale(weights, fmt)
    found = round_second_order(weights, (rows.T @ rows)[None], scale, fmt)
    nearest = nearest_on_grid(weights, scale, fmt)
    errors = [np.square(fresh @ (weights - q)[0].T).sum() for q in (found, nearest)]
    assert errors[0] < at_most * errors[1]
    np.testing.assert_array_equal(nearest_on_grid(found.astype(np.float64), scale, fmt), found)


def test_an_input_that_is_always_zero_and_no_rows_keep_nearest() -> None:
    weights = normal(2, 3, 9, seed=4).astype(np.float64)
    scale = _scale(weights, INT8)
    found = round_second_order(weights, np.zeros((2, 9, 9)), scale, INT8)
    np.testing.assert_array_equal(found, nearest_on_grid(weights, scale, INT8))
    assert product_error(weights, np.zeros((2, 9, 9))).tolist() == [0.0, 0.0]


CONVS = [
    ("group = 1, pads = [1, 2, 0, 1], strides = [2, 1]", (6, 4, 3, 3)),
    ("group = 2, dilations = [2, 1]", (6, 2, 3, 2)),
    ("group = 4, pads = [1, 1, 1, 1]", (8, 1, 3, 3)),
]


@pytest.mark.parametrize(("attributes", "shape"), CONVS)
def test_rows_times_weights_are_the_convolution(attributes: str, shape: tuple[int, ...]) -> None:
    model = from_text(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 4, 9, 7] x) => (float[a, b, c, d] y) {{ y = Conv <{attributes}> (x, w) }}""",
        w=normal(*shape, seed=1),
    )
    x = normal(2, 4, 9, 7, seed=2, scale=1.0)
    layer = layer_of(model.graph[0])
    assert isinstance(layer, Layer)
    product = np.einsum("rgk,gok->rgo", layer.rows(x).astype(np.float64), layer.weights())
    expected = np.moveaxis(run_all(model, [{"x": x}]), 1, -1)
    np.testing.assert_allclose(product.reshape(expected.shape), expected, atol=1e-5)
    weight = model.graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(layer.stored(layer.weights()), weight.numpy())


def _net() -> ir.Model:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 32, 6, 6] x) => (float[N, 40] y) {
      c = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)
      r = Relu(c)
      d = Conv <group = 32, pads = [1, 1, 1, 1]> (r, w1, b1)
      e = Relu(d)
      p = GlobalAveragePool(e)
      f = Flatten(p)
      m = MatMul(f, w2)
      y = Add(m, b2) }"""
    return named(
        from_text(
            text, w0=normal(32, 32, 3, 3, seed=1), b0=normal(32, seed=2),
            w1=normal(32, 1, 3, 3, seed=3, scale=0.3), b1=normal(32, seed=4),
            w2=normal(32, 40, seed=5), b2=normal(40, seed=6),
        )
    )  # fmt: skip


def _data(seed: int, count: int = 3) -> list[dict[str, np.ndarray]]:
    """Images with three sources for 32 channels, and a mean."""
    mix = normal(3, 32, seed=9, scale=1.0)
    draws = [normal(4, 6, 6, 3, seed=seed + n, scale=1.0) @ mix + 0.5 for n in range(count)]
    return [{"x": np.ascontiguousarray(draw.transpose(0, 3, 1, 2))} for draw in draws]


def _quantized(**more: object) -> fuseq.Quantized:
    options = fuseq.QuantizeOptions(policy="full", batch=4, precision="fp32", **more)  # type: ignore[arg-type]
    return fuseq.quantize(_net(), calib=_data(20), options=options)


@pytest.mark.parametrize("fmt", ["int8", "fp8"])
def test_quantize_changes_the_stored_values_alone_and_comes_nearer(fmt: str) -> None:
    nearest, found = _quantized(format=fmt), _quantized(format=fmt, rounding="gptq")
    assert nearest.plan == found.plan
    before, after = (q.model.graph.initializers for q in (nearest, found))
    changed = {
        name
        for name, value in before.items()
        if not np.array_equal(value.const_value.numpy(), after[name].const_value.numpy())  # type: ignore[union-attr]
    }
    stored = {name for name in before if name.endswith("_quantized")}
    assert changed
    assert changed <= stored
    exact = run_all(_net(), _data(50))
    noise = [
        np.square(run_all(q.model, _data(50), optimized=False) - exact).sum()
        for q in (found, nearest)
    ]
    assert noise[0] < 0.9 * noise[1]
    again = _quantized(format=fmt, rounding="gptq").model.graph.initializers
    for name in stored:
        first, second = after[name].const_value, again[name].const_value
        assert first is not None
        assert second is not None
        assert first.tobytes() == second.tobytes()


def _mean_errors(model: ir.Model, data: list[dict[str, np.ndarray]], fmt: str) -> list[float]:
    """Mean over channels of the magnitude of the mean output error: corrected, and not."""
    exact, found = run_all(model, data), []
    for correct in (True, False):
        options = fuseq.QuantizeOptions(
            format=fmt, policy="full", batch=4, precision="fp32", bias_correction=correct
        )
        quantized = fuseq.quantize(model, calib=data, options=options).model
        error = run_all(quantized, data, optimized=False).astype(np.float64) - exact
        found.append(float(np.abs(error.mean(axis=0)).mean()))
    return found


@pytest.mark.parametrize("fmt", ["int8", "fp8"])
def test_bias_correction_takes_the_mean_error_of_one_layer_away(fmt: str) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 32] x) => (float[N, 48] y) { y = Gemm <transB = 1> (x, w, b) }"""
    model = named(from_text(text, w=normal(48, 32, seed=1), b=normal(48, seed=2)))
    data = [{"x": normal(64, 32, seed=seed, scale=1.0) + 1} for seed in range(3)]
    corrected, plain = _mean_errors(model, data, fmt)
    assert corrected < 0.01 * plain


def test_bias_correction_takes_half_of_the_mean_error_of_a_net_away() -> None:
    corrected, plain = _mean_errors(_net(), _data(20), "int8")
    assert corrected < 0.6 * plain


def test_a_bias_that_another_node_reads_is_left() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[4, 32] x) => (float[4, 32] y) {
      m = MatMul(x, w0)  a = Add(m, b)  r = Relu(a)  n = MatMul(r, w1)  y = Add(n, b) }"""
    model = named(from_text(text, w0=normal(32, 32), w1=normal(32, 32, seed=1), b=normal(32)))
    options = fuseq.QuantizeOptions(policy="full", batch=4, bias_correction=True)
    result = fuseq.quantize(model, calib=[{"x": normal(4, 32, scale=1.0)}], options=options)
    assert "bias correction: n_m, n_n left, because the layer has no bias of its own." in (
        result.notes
    )
