"""Running models over batches on ONNX Runtime, checked against NumPy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from fuseq.errors import TargetError
from fuseq.evaluate.running import run_all, run_batches
from tests.graphs import from_text, normal


def linear(dtype: str = "float") -> ir.Model:
    """y = x w, z = -y."""
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net ({dtype}[N, 3] x) => ({dtype}[N, 2] y, {dtype}[N, 2] z) {{
      y = MatMul(x, w)
      z = Neg(y)
    }}"""
    weight = normal(3, 2, seed=1)
    return from_text(text, w=weight.astype(np.float16) if dtype == "float16" else weight)


def batches(*sizes: int) -> list[dict[str, np.ndarray]]:
    return [{"x": normal(size, 3, seed=size, scale=1.0)} for size in sizes]


def test_outputs_of_every_batch() -> None:
    data = batches(2, 5)
    results = list(run_batches(linear(), data))
    assert [result["y"].shape for result in results] == [(2, 2), (5, 2)]
    for batch, result in zip(data, results, strict=True):
        exact = batch["x"].astype(np.float64) @ normal(3, 2, seed=1).astype(np.float64)
        np.testing.assert_allclose(result["y"], exact, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(result["z"], -result["y"])


def test_batches_are_taken_one_at_a_time() -> None:
    taken = 0

    def source() -> Iterator[dict[str, np.ndarray]]:
        nonlocal taken
        for batch in batches(1, 2, 3):
            taken += 1
            yield batch

    results = run_batches(linear(), source())
    assert taken == 0
    next(results)
    assert taken == 1


def test_one_output_joined() -> None:
    data = batches(2, 5)
    assert run_all(linear(), data).shape == (7, 2)
    np.testing.assert_array_equal(run_all(linear(), data, output="z"), -run_all(linear(), data))


def test_floats_are_converted_to_the_inputs_type() -> None:
    outputs = run_all(linear("float16"), batches(4))
    assert outputs.dtype == np.float16
    half = batches(4)[0]["x"].astype(np.float16).astype(np.float64)
    exact = half @ normal(3, 2, seed=1).astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(outputs.astype(np.float64), exact, atol=2e-3)


def test_fp8_pairs_run_as_written() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[N, 64] x) => (float[N, 64] y) {
      q = QuantizeLinear(x, scale, zero)
      y = DequantizeLinear(q, scale, zero)
    }"""
    scale = np.float32(0.02)
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    model = from_text(text, scale=np.array(scale), zero=zero)
    x = normal(4, 64, seed=3, scale=4.0)
    expected = np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    found = run_all(model, [{"x": x}], optimized=False)
    np.testing.assert_array_equal(found, expected * scale)


@pytest.mark.parametrize("in_fp32", [False, True])
def test_pairs_and_products_are_computed_as_written(in_fp32: bool) -> None:
    """An FP16 file with INT8 pairs around a MatMul, which an integer kernel would take."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float16[N, 64] x) => (float16[N, 8] y) {
      q = QuantizeLinear(x, s, z)
      d = DequantizeLinear(q, s, z)
      e = DequantizeLinear(w, t)
      m = MatMul(d, e)
      p = QuantizeLinear(m, u, z)
      y = DequantizeLinear(p, u, z)
    }"""
    weight = np.random.default_rng(5).integers(-127, 128, (64, 8)).astype(np.int8)
    s, t, u = np.float16(0.03), np.float16(0.002), np.float16(0.25)
    model = from_text(
        text, s=np.array(s), t=np.array(t), u=np.array(u), z=np.zeros((), np.int8), w=weight
    )
    x = normal(16, 64, seed=3, scale=1.5).astype(np.float16)
    found = run_all(model, [{"x": x}], optimized=False, in_fp32=in_fp32)
    assert found.dtype == (np.float32 if in_fp32 else np.float16)
    stored = np.clip(np.rint(x.astype(np.float64) / float(s)), -128, 127) * float(s)
    steps = stored @ (weight * float(t)) / float(u)
    clear = np.abs(steps - np.floor(steps) - 0.5) > 0.05  # halves may round either way
    assert clear.mean() > 0.8
    exact = np.clip(np.rint(steps), -128, 127) * float(u)
    np.testing.assert_array_equal(found[clear], exact[clear])


def test_a_wrong_batch_and_no_batch_are_refused() -> None:
    with pytest.raises(TargetError, match="image"):
        run_all(linear(), [{"image": np.ones((1, 3), np.float32)}])
    with pytest.raises(TargetError, match="no batch"):
        run_all(linear(), [])
    with pytest.raises(TargetError, match="output 'w' is unknown"):
        run_all(linear(), batches(1), output="w")


@pytest.mark.parametrize("clipped", ["Relu(x)", "Clip(x, low, high)"])
def test_what_clips_before_fp8_is_kept(clipped: str) -> None:
    """ONNX Runtime 1.32 drops a Relu, because the zero point is 0, and refuses a Clip."""
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[4] x) => (float[4] y) <float scale = {{1.0}}, float low = {{0.0}}, float high = {{2.0}}> {{
      r = {clipped}
      q = QuantizeLinear(r, scale, zero)
      y = DequantizeLinear(q, scale, zero) }}"""
    model = from_text(text, zero=np.zeros((), ml_dtypes.float8_e4m3fn))
    x = np.array([-2.0, -0.5, 0.5, 3.0], np.float32)
    largest = 3.0 if clipped == "Relu(x)" else 2.0
    assert run_all(model, [{"x": x}], optimized=False).tolist() == [0.0, 0.0, 0.5, largest]
