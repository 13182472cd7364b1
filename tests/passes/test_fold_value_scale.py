"""A factor behind attention moves into V's projection, and nowhere else."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.passes.fold_value_scale import fold_value_scales
from fuseq.passes.shapes import infer_shapes
from tests.graphs import from_text, named, normal
from tests.quantized_nets import HEAD, run_as_written

_ATTENTION = """
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul(q, kt)
  p = Softmax <axis = -1> (s)
  a = MatMul(p, v)
  t = Transpose <perm = [0, 2, 1, 3]> (a)
  m = Reshape(t, flat)
  f = Mul(m, c)
  o = MatMul(f, wo)
"""
_CUT = """
  h = Reshape(l, heads)
  u = Transpose <perm = [2, 0, 3, 1, 4]> (h)
  qs = Slice(u, i0, i1, i0)
  q = Squeeze(qs, i0)
  ks = Slice(u, i1, i2, i0)
  k = Squeeze(ks, i0)
  vs = Slice(u, i2, i3, i0)
  v = Squeeze(vs, i0)
"""
_SPLIT = """
  lq, lk, lv = Split <axis = -1, num_outputs = 3> (l)
  rq = Reshape(lq, own)
  q = Transpose <perm = [0, 2, 1, 3]> (rq)
  rk = Reshape(lk, own)
  k = Transpose <perm = [0, 2, 1, 3]> (rk)
  rv = Reshape(lv, own)
  v = Transpose <perm = [0, 2, 1, 3]> (rv)
"""
_FLOAT = "g = MatMul(x, w)\n  l = Add(g, b)"
_STORED = "wd = DequantizeLinear <axis = 1> (wi, ws)\n  g = MatMul(x, wd)\n  l = Add(g, b)"
_GEMM = "x2 = Reshape(x, rows)\n  g = Gemm <transB = 1> (x2, wt, b)\n  l = Reshape(g, back)"


def net(projection: str, cut: str, more: str = "", outputs: str = "float[B, 5, 8] o") -> ir.Model:
    """Two heads of four channels; Q, K and V from one layer of 24 columns."""
    rng = np.random.default_rng(0)
    weight = normal(8, 24, seed=1)
    body = f"{projection}{cut}{_ATTENTION}{more}".replace("\n\n", "\n")
    model = from_text(
        f"""{HEAD}
        g (float[B, 5, 8] x) => ({outputs}) <
          int64[5] heads = {{0, 5, 3, 2, 4}}, int64[4] own = {{0, 5, 2, 4}}, int64[3] flat = {{0, 5, 8}},
          int64[2] rows = {{-1, 8}}, int64[3] back = {{-1, 5, 24}},
          int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] i2 = {{2}}, int64[1] i3 = {{3}}
        > {{
          {body}
        }}""",
        w=weight,
        wt=weight.T.copy(),
        wi=rng.integers(-127, 128, (8, 24)).astype(np.int8),
        ws=rng.uniform(0.005, 0.02, 24).astype(np.float32),
        b=normal(24, seed=2),
        c=rng.uniform(0.2, 5, (1, 1, 8)).astype(np.float32),
        wo=normal(8, 8, seed=3),
    )
    named(model)
    infer_shapes(model)
    return model


@pytest.mark.parametrize("projection", [_FLOAT, _STORED, _GEMM], ids=["float", "stored", "gemm"])
@pytest.mark.parametrize("cut", [_CUT, _SPLIT], ids=["sliced", "split"])
def test_the_factor_is_in_the_columns_of_v(projection: str, cut: str) -> None:
    model = net(projection, cut)
    x = normal(3, 5, 8, seed=4)
    before = run_as_written(model, x=x)
    fold_value_scales(model)
    assert "Mul" not in {node.op_type for node in model.graph}
    np.testing.assert_allclose(run_as_written(model, x=x), before, rtol=2e-5, atol=2e-5)


def test_stored_integers_stay_and_their_scales_take_the_factor() -> None:
    model = net(_STORED, _CUT)
    graph = model.graph
    old = graph.initializers["ws"].const_value.numpy()
    factor = graph.initializers["c"].const_value.numpy().reshape(-1)
    integers = graph.initializers["wi"].const_value.numpy()
    fold_value_scales(model)
    stored = next(node for node in graph if node.op_type == "DequantizeLinear")
    scales = stored.inputs[1].const_value.numpy()
    np.testing.assert_array_equal(stored.inputs[0].const_value.numpy(), integers)
    np.testing.assert_array_equal(scales[:16], old[:16])
    np.testing.assert_array_equal(scales[16:], (old[16:].astype(np.float64) * factor).astype("f4"))


def test_nothing_moves_across_a_tensor_that_has_a_scale() -> None:
    for name in ("v", "a", "m", "l", "lv"):
        model = net(_FLOAT, _SPLIT)
        marked = [value for node in model.graph for value in node.outputs if value.name == name]
        assert len(marked) == 1
        fold_value_scales(model, marked)
        assert "Mul" in {node.op_type for node in model.graph}, name


@pytest.mark.parametrize(
    ("more", "outputs"),
    [
        ("e = Relu(v)", "float[B, 5, 8] o, float[B, 2, 5, 4] e"),
        ("e = Relu(l)", "float[B, 5, 8] o, float[B, 5, 24] e"),
        ("e = Relu(m)", "float[B, 5, 8] o, float[B, 5, 8] e"),
        ("es = Slice(u, i1, i3, i0)\n  e = Relu(es)", "float[B, 5, 8] o, float[2, B, 2, 5, 4] e"),
    ],
    ids=["v", "projection", "behind the product", "another slice with V's columns"],
)
def test_nothing_moves_where_others_see_it(more: str, outputs: str) -> None:
    model = net(_FLOAT, _CUT, more, outputs)
    fold_value_scales(model)
    assert "Mul" in {node.op_type for node in model.graph}


def test_a_factor_along_the_tokens_stays() -> None:
    model = net(_FLOAT, _CUT)
    tokens = normal(1, 5, 1, seed=5)
    model.graph.initializers["c"].const_value = ir.tensor(tokens)
    model.graph.initializers["c"].shape = ir.Shape(tokens.shape)
    fold_value_scales(model)
    assert "Mul" in {node.op_type for node in model.graph}
