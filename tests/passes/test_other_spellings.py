"""Stripping every other spelling: QOperator, written out, private, at run time."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.calibration.rounding import quantize_array
from fuseq.formats import INT8
from fuseq.passes.fake_quantize import fake_quantize_to_pairs
from fuseq.passes.qoperators import qoperators_to_pairs
from tests.graphs import from_text, named, normal
from tests.passes.stripping import F8, HEAD, array_of, operators, run_as_written, strip_checked


def _qlinear_net() -> ir.Model:
    rng = np.random.default_rng(7)
    text = f"""{HEAD}
    g (float[1, 4, 6, 6] x) => (float[1, 5] y)
    <float s = {{0.02}}, uint8 z = {{120}}, float t = {{0.05}}, uint8 r = {{0}}, int8 wz = {{0}},
     int64[2] to = {{1, 4}}, float u = {{0.04}}, uint8 m = {{128}}>
    {{
      q = QuantizeLinear(x, s, z)
      c = QLinearConv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (q, s, z, w, ws, wz4, t, r, b)
      a = com.microsoft.QLinearAdd(c, t, r, q, s, z, u, m)
      p = com.microsoft.QLinearGlobalAveragePool <channels_last = 0> (a, u, m, t, r)
      f = Reshape(p, to)
      o = com.microsoft.QGemm <transB = 1> (f, t, r, v, vs, wz, vb, u, m)
      y = DequantizeLinear(o, u, m)
    }}"""
    return named(
        from_text(
            text,
            w=rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
            ws=rng.uniform(0.001, 0.004, 4).astype(np.float32),
            wz4=np.zeros(4, np.int8),
            b=rng.integers(-3000, 3000, 4).astype(np.int32),
            v=rng.integers(-127, 128, (5, 4)).astype(np.int8),
            vs=np.asarray(0.003, np.float32),
            vb=rng.integers(-3000, 3000, 5).astype(np.int32),
        )
    )


def test_qoperators_become_pairs_that_compute_the_same() -> None:
    model = _qlinear_net()
    x = normal(1, 4, 6, 6, seed=1, scale=1.0)
    before = run_as_written(model, x=x)
    (repair,) = qoperators_to_pairs(model)
    assert repair.fault == "qoperator" and len(repair.nodes) == 4
    assert [op for op in operators(model) if "Linear" not in op] == [
        "Conv", "Add", "GlobalAveragePool", "Reshape", "Gemm"
    ]  # fmt: skip
    step = np.float32(0.04)
    assert (
        np.abs(run_as_written(model, x=x) - before).max() <= step * 1.001
    )  # a tie may round the other way


def test_qoperators_strip_with_all_their_scales() -> None:
    model = _qlinear_net()
    integers, bias = array_of(model, "w"), array_of(model, "b")
    stripped, found = strip_checked(model)
    assert operators(model) == [
        "Conv",
        "Clip",
        "Add",
        "GlobalAveragePool",
        "Reshape",
        "Clip",
        "Gemm",
    ]
    by = found["weight", "w"].by
    np.testing.assert_array_equal(
        quantize_array(array_of(model, "w"), by.scale, None, INT8, 0), integers
    )
    assert found["bias", "b"].by.stored == ir.DataType.INT32
    np.testing.assert_array_equal(
        array_of(model, "b"),
        bias.astype(np.float32) * (np.float32(0.02) * by.scale),
    )
    assert found["activation", "x"].by.zero_point == 120
    activations = {s.tensor: float(s.by.scale) for s in found.values() if s.kind == "activation"}
    expected = {"x": 0.02, "c_clipped": 0.05, "a": 0.04, "f_clipped": 0.05, "y": 0.04}
    assert {k.replace("_float", ""): v for k, v in activations.items()} == {
        name: np.float32(scale) for name, scale in expected.items()
    }
    assert len(stripped.pairs) == 15


def _decomposed(bounds: str, zero: float = 0.0, divides: bool = True) -> ir.Model:
    first = "m = Div(x, s)" if divides else "m = Mul(x, inverse)"
    low, high = bounds.split()
    text = f"""{HEAD}
    g (float[1, 4, 3, 3] x) => (float[1, 4, 3, 3] y)
    <float s = {{0.1}}, float inverse = {{10.0}}, float z = {{{zero}}},
     float low = {{{low}}}, float high = {{{high}}}> {{
      {first}
      r = Round(m)
      a = Add(r, z)
      k = Clip(a, low, high)
      b = Sub(k, z)
      d = Mul(b, s)
      y = Conv <kernel_shape = [1, 1]> (d, w)
    }}"""
    return named(from_text(text, w=normal(4, 4, 1, 1)))


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize(
    ("bounds", "zero", "stored"),
    [("-128.0 127.0", 0.0, "int8"), ("-128.0 127.0", -28.0, "int8"), ("0.0 255.0", 100.0, "uint8"),
     ("-127.0 127.0", 0.0, "int8")],
)  # fmt: skip
def test_k63_written_out_quantizers_become_pairs(
    bounds: str, zero: float, stored: str, divides: bool
) -> None:
    model = _decomposed(bounds, zero, divides)
    x = normal(1, 4, 3, 3, seed=1, scale=4.0)
    before = run_as_written(model, x=x)
    (repair,) = fake_quantize_to_pairs(model)
    assert repair.fault == "decomposed"
    assert operators(model) == ["QuantizeLinear", "DequantizeLinear", "Conv"]
    np.testing.assert_allclose(run_as_written(model, x=x), before, atol=1e-6)
    _, found = strip_checked(model)
    by = found["activation", "x"].by
    assert (by.format, by.scale, by.zero_point) == (stored, np.float32(0.1), zero)
    assert operators(model) == ["Conv"]


def test_k63_the_zero_point_may_be_added_before_rounding() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 4, 3, 3] x) => (float[1, 4, 3, 3] y)
            <float s = {{0.1}}, float z = {{7.0}}, float low = {{-128.0}}, float high = {{127.0}}> {{
              m = Div(x, s)
              a = Add(m, z)
              k = Clip(a, low, high)
              r = Round(k)
              b = Sub(r, z)
              y = Mul(b, s)
            }}"""
        )
    )
    x = normal(1, 4, 3, 3, seed=1, scale=4.0)
    before = run_as_written(model, x=x)
    assert [repair.fault for repair in fake_quantize_to_pairs(model)] == ["decomposed"]
    assert array_of(model, "x_zero_point") == 7
    np.testing.assert_allclose(run_as_written(model, x=x), before, atol=1e-6)


def test_k63_a_written_out_weight_quantizer_with_a_scale_a_channel() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 4, 3, 3] x) => (float[1, 4, 3, 3] y)
            <float low = {{-127.0}}, float high = {{127.0}}> {{
              m = Div(w, s)
              r = Round(m)
              k = Min(r, high)
              l = Max(k, low)
              d = Mul(l, s)
              y = Conv <kernel_shape = [1, 1]> (x, d)
            }}""",
            w=normal(4, 4, 1, 1),
            s=np.asarray([0.001, 0.002, 0.003, 0.004], np.float32).reshape(4, 1, 1, 1),
        )
    )
    x = normal(1, 4, 3, 3)
    before = run_as_written(model, x=x)
    _, found = strip_checked(model)
    assert operators(model) == ["Conv"]
    (weight,) = found.values()
    assert weight.by.axis == 0
    np.testing.assert_allclose(run_as_written(model, x=x), before, atol=1e-6)


def test_what_only_looks_like_a_quantizer_stays() -> None:
    four_bits = _decomposed("-8.0 7.0")
    (repair,) = fake_quantize_to_pairs(four_bits)
    assert repair.fault == "left" and "-8 ... 7" in repair.text
    assert "Round" in operators(four_bits)
    other = _decomposed("-128.0 127.0", divides=False)
    other.graph.initializers["inverse"].const_value = ir.tensor(np.float32(9.0))
    assert fake_quantize_to_pairs(other) == []


def test_k71_private_operators_become_standard_ones() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 4, 4] x) => (float[1, 16, 4, 4] y)
            <float s = {{0.01}}, float t = {{0.002}}> {{
              q = trt.TRT_FP8QuantizeLinear(x, s)
              d = trt.TRT_FP8DequantizeLinear(q, s)
              wq = trt.TRT_FP8QuantizeLinear(w, t)
              wd = trt.TRT_FP8DequantizeLinear(wq, t)
              y = Conv <kernel_shape = [1, 1]> (d, wd, b)
            }}""",
            w=normal(16, 16, 1, 1),
            b=normal(16),
        )
    )
    weight = array_of(model, "w")
    stripped, found = strip_checked(model)
    assert [r.fault for r in stripped.repairs] == ["private"]
    assert operators(model) == ["Conv"]
    assert model.graph.outputs[0].shape == ir.Shape([1, 16, 4, 4])
    assert found["activation", "x"].by.format == "fp8"
    expected = (weight / np.float32(0.002)).clip(-448, 448).astype(F8).astype(np.float32)
    np.testing.assert_array_equal(array_of(model, "w"), expected * np.float32(0.002))


def test_k71_standard_names_in_a_private_domain_become_standard_operators() -> None:
    """As ModelOpt 0.47's deploy export writes FP8: stored weights, UINT8 declared between the pair."""
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 4, 4] x) => (float[1, 16, 4, 4] y)
            <float s = {{0.01}}, float t = {{0.002}}, uint8[1, 16, 4, 4] q> {{
              q = trt.QuantizeLinear <saturate = 1> (x, s, z)
              d = trt.DequantizeLinear(q, s)
              wd = trt.DequantizeLinear(w, t)
              y = Conv <kernel_shape = [1, 1]> (d, wd, b)
            }}""",
            w=normal(16, 16, 1, 1, scale=100.0).astype(F8),
            z=np.zeros((), F8),
            b=normal(16),
        )
    )
    stored = array_of(model, "w").astype(np.float32)
    stripped, found = strip_checked(model)
    assert [r.fault for r in stripped.repairs] == ["private"]
    assert operators(model) == ["Conv"]
    assert found["activation", "x"].by.format == "fp8"
    assert found["weight", "w"].by.format == "fp8"
    np.testing.assert_array_equal(array_of(model, "w"), stored * np.float32(0.002))


def test_k57_products_quantized_at_run_time_become_float_with_stored_weights() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[3, 8] x) => (float[3, 5] y) {{
              q, s, z = DynamicQuantizeLinear(x)
              i = MatMulInteger(q, w, z, wz)
              f = Cast <to = 1> (i)
              t = Mul(s, ws)
              m = Mul(f, t)
              y = Add(m, b)
            }}""",
            w=np.random.default_rng(0).integers(0, 256, (8, 5)).astype(np.uint8),
            wz=np.asarray(117, np.uint8),
            ws=np.asarray(0.01, np.float32),
            b=normal(5),
        )
    )
    x = normal(3, 8, seed=2, scale=1.0)
    before = run_as_written(model, x=x)
    stripped, found = strip_checked(model)
    assert operators(model) == ["MatMul", "Add"]
    assert [r.fault for r in stripped.repairs] == ["dynamic"]
    (weight,) = found.values()
    assert (weight.kind, weight.by.format, int(weight.by.zero_point)) == ("weight", "uint8", 117)
    step = (x.max() - x.min()) / 255
    largest = np.abs(array_of(model, weight.tensor)).sum(0).max()
    assert np.abs(run_as_written(model, x=x) - before).max() <= step / 2 * largest * 1.01
