"""Scale, transpose and projection of an attention, in the spellings that exporters write."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.passes.attention_scale import merge_attention_scales
from fuseq.passes.clean import clean_up
from fuseq.passes.flat_transpose import merge_flat_transposes
from fuseq.passes.sibling_linears import merge_sibling_linears
from fuseq.passes.unbind import split_unbound_heads
from tests.graphs import from_text, normal
from tests.passes.reading import lines, ops, run


def test_one_scale_of_the_heads_width_stands_on_q() -> None:
    root = np.sqrt(np.float32(1 / np.sqrt(64)))
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 2, 3, 4] q, float[1, 2, 4, 3] k) => (float[1, 2, 3, 3] y)
        <float root = {{{root}}}> {{
          a = Mul(q, root)
          b = Mul(root, k)
          y = MatMul(a, b)
        }}"""
    )
    feeds = {"q": normal(1, 2, 3, 4, seed=1, scale=1), "k": normal(1, 2, 4, 3, seed=2, scale=1)}
    before = run(model, **feeds)[0]
    merge_attention_scales(model)
    assert lines(model) == ["a = Mul(q, 0.125)", "y = MatMul(a, k)"]  # exactly 1 / sqrt(64)
    np.testing.assert_allclose(run(model, **feeds)[0], before, rtol=1e-6)


@pytest.mark.parametrize("k", ["b = Mul(k, q4)", "b = Identity(k)"])
def test_a_scale_on_one_side_or_a_vector_stays(k: str) -> None:
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[4, 4] q, float[4, 4] k, float[4, 4] q4) => (float[4, 4] y)
        <float half = {{0.5}}> {{
          a = Mul(q, half)
          {k}
          y = MatMul(a, b)
        }}"""
    )
    before = lines(model)
    merge_attention_scales(model)
    assert lines(model) == before


FLAT = """<ir_version: 8, opset_import: ["" : 21]>
    net (float[b, 2, s, 4] x) => (float[b, 2, 4, s] y)
    <int64[1] m1 = {{-1}}, int64[1] m2 = {{-2}}, int64[1] end = {{9223372036854775807}},
     int64[1] begin = {{0}}> {{
      shape = Shape(x)
      last = Slice(shape, m1, end)
      second = Slice(shape, m2, m1)
      lead = Slice(shape, begin, m2)
      flat = Concat <axis = 0> (m1, second, last)
      r = Reshape(x, flat)
      t = Transpose <perm = [0, 2, 1]> (r)
      target = Concat <axis = 0> (lead, {order})
      y = Reshape(t, target)
    }}"""


def test_a_transpose_through_a_flat_batch_is_one_transpose_with_open_sizes() -> None:
    model = from_text(FLAT.format(order="last, second"))
    x = normal(3, 2, 5, 4)
    before = run(model, x=x)[0]
    merge_flat_transposes(model)
    clean_up(model)
    assert lines(model) == ["y = Transpose(x)"]
    assert model.graph[0].attributes["perm"].as_ints() == (0, 1, 3, 2)
    np.testing.assert_array_equal(run(model, x=x)[0], before)


def test_a_reshape_to_another_order_is_not_that_transpose() -> None:
    model = from_text(FLAT.format(order="second, last"))
    before = ops(model)
    merge_flat_transposes(model)
    assert ops(model) == before


QKV = """<ir_version: 8, opset_import: ["" : 21]>
    net (float[b, 6, 8] x) => (float[b, 2, 6, 4] q, float[b, 2, 6, 4] k, float[b, 2, 6, 4] v)
    <int64[4] cut = {{0, 6, 2, 4}}> {{
      q0 = MatMul(x, wq)
      q1 = Add(q0, bq)
      k0 = MatMul(x, wk)
      k1 = {k_bias}
      v0 = MatMul(x, wv)
      v1 = Add(bv, v0)
      q2 = Reshape(q1, cut)
      k2 = Reshape(k1, cut)
      v2 = Reshape(v1, cut)
      q = Transpose <perm = [0, 2, 1, 3]> (q2)
      k = Transpose <perm = [0, 2, 1, 3]> (k2)
      v = Transpose <perm = [0, 2, 1, 3]> (v2)
    }}"""


def _qkv_model(k_bias: str) -> ir.Model:
    weights = {f"w{name}": normal(8, 8, seed=seed) for seed, name in enumerate("qkv")}
    biases = {f"b{name}": normal(8, seed=seed + 9) for seed, name in enumerate("qkv")}
    return from_text(QKV.format(k_bias=k_bias), **weights, **biases)


def test_q_k_and_v_become_one_product_with_a_split() -> None:
    model = _qkv_model("Add(k0, bk)")
    x = normal(2, 6, 8, seed=5, scale=1)
    before = run(model, x=x)
    merge_sibling_linears(model)
    clean_up(model)
    assert ops(model)[:3] == ["MatMul", "Add", "Split"]
    assert [value.name for value in model.graph[2].outputs] == ["q1", "k1", "v1"]
    for got, want in zip(run(model, x=x), before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_a_sibling_without_bias_gets_zeros() -> None:
    model = _qkv_model("Identity(k0)")
    identity = next(node for node in model.graph if node.op_type == "Identity")
    identity.outputs[0].replace_all_uses_with(identity.inputs[0])
    model.graph.remove(identity, safe=True)
    x = normal(2, 6, 8, seed=5, scale=1)
    before = run(model, x=x)
    merge_sibling_linears(model)
    assert ops(model)[:3] == ["MatMul", "Add", "Split"]
    bias = model.graph[1].inputs[1].const_value.numpy()
    np.testing.assert_array_equal(bias[8:16], np.zeros(8, np.float32))
    for got, want in zip(run(model, x=x), before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_linears_of_other_inputs_or_without_heads_are_no_siblings() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[2, 8] x) => (float[2, 8] y) {
          a = MatMul(x, wa)
          g = Sigmoid(a)
          b = MatMul(x, wb)
          y = Mul(g, b)
        }""",
        wa=normal(8, 8),
        wb=normal(8, 8, seed=1),
    )
    before = lines(model)
    merge_sibling_linears(model)
    assert lines(model) == before


@pytest.mark.parametrize(
    "parts",
    [
        """q0 = Slice(t, z, one, z)
           q = Squeeze(q0, z)
           k0 = Slice(t, one, two, z)
           k = Squeeze(k0, z)
           v0 = Slice(t, two, three, z)
           v = Squeeze(v0, z)""",
        """q = Gather <axis = 0> (t, i0)
           k = Gather <axis = 0> (t, i1)
           v = Gather <axis = 0> (t, i2)""",
        """q0, k0, v0 = Split <axis = 0, num_outputs = 3> (t)
           q = Squeeze(q0, z)
           k = Squeeze(k0, z)
           v = Squeeze(v0, z)""",
    ],
)
def test_unbound_heads_become_a_split_of_the_last_axis(parts: str) -> None:
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[b, 6, 24] x) => (float[b, 2, 6, 4] q, float[b, 2, 6, 4] k, float[b, 2, 6, 4] v)
        <int64[5] cut = {{0, 6, 3, 2, 4}}, int64[1] z = {{0}}, int64[1] one = {{1}},
         int64[1] two = {{2}}, int64[1] three = {{3}}, int64 i0 = {{0}}, int64 i1 = {{1}},
         int64 i2 = {{2}}> {{
          r = Reshape(x, cut)
          t = Transpose <perm = [2, 0, 3, 1, 4]> (r)
          {parts}
        }}"""
    )
    x = normal(2, 6, 24, seed=5, scale=1)
    before = run(model, x=x)
    split_unbound_heads(model)  # which leaves nothing dead behind
    assert sorted(ops(model)) == ["Reshape"] * 3 + ["Split"] + ["Transpose"] * 3
    for got, want in zip(run(model, x=x), before, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_transposed_tensor_with_another_reader_stays() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[b, 6, 24] x) => (float[b, 2, 6, 4] q, float[3, b, 2, 6, 4] z)
        <int64[5] cut = {0, 6, 3, 2, 4}, int64 i0 = {0}> {
          r = Reshape(x, cut)
          t = Transpose <perm = [2, 0, 3, 1, 4]> (r)
          q = Gather <axis = 0> (t, i0)
          z = Relu(t)
        }"""
    )
    before = lines(model)
    split_unbound_heads(model)
    assert lines(model) == before
