"""LayerNormalization, GELU, clips and operators that do nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fuseq.passes.clean import clean_up
from fuseq.passes.clips import merge_clips
from fuseq.passes.gelu import fuse_gelus
from fuseq.passes.layer_norm import fuse_layer_norms
from fuseq.passes.no_ops import remove_no_ops
from tests.graphs import from_text, normal
from tests.passes.reading import lines, ops, run

HEAD = '<ir_version: 8, opset_import: ["" : 21]>'

NORM = """{head} net (float[2, 5, 8] x) => (float[2, 5, 8] y)
  <int64[1] axes = {{-1}}, float eps = {{1e-5}}, float two = {{2.0}}, float half = {{0.5}},
   float minus = {{-0.5}}> {{
    mean = ReduceMean(x, axes)
    d = Sub(x, mean)
    {square}
    var = ReduceMean(sq, axes)
    ve = Add(eps, var)
    {divide}
    s = Mul(g, n)
    t = Add(s, b)
    y = Relu(t)
  }}"""


@pytest.mark.parametrize(
    "square", ["sq = Pow(d, two)", "sq = Mul(d, d)", "d2 = Sub(x, mean)\n sq = Pow(d2, two)"]
)
@pytest.mark.parametrize(
    "divide",
    [
        "r = Sqrt(ve)\n n = Div(d, r)",
        "r = Pow(ve, half)\n n = Div(d, r)",
        "r = Sqrt(ve)\n i = Reciprocal(r)\n n = Mul(i, d)",
        "r = Pow(ve, minus)\n n = Mul(d, r)",
    ],
)
def test_a_written_out_layer_norm_is_one_operator(square: str, divide: str) -> None:
    model = from_text(
        NORM.format(head=HEAD, square=square, divide=divide),
        g=normal(8, seed=1, scale=1),
        b=normal(8, seed=2, scale=1),
    )
    x = normal(2, 5, 8, seed=3, scale=3)
    before = run(model, x=x)[0]
    fuse_layer_norms(model)
    assert all(
        output.name for node in model.graph for output in node.outputs
    )  # else onnx infers no shape
    clean_up(model)
    assert lines(model) == ["t = LayerNormalization(x, g, b)", "y = Relu(t)"]
    np.testing.assert_allclose(run(model, x=x)[0], before, rtol=1e-5, atol=1e-6)


def test_without_scale_it_gets_ones_and_a_vector_of_another_shape_stays_behind() -> None:
    model = from_text(
        NORM.format(head=HEAD, square="sq = Mul(d, d)", divide="r = Sqrt(ve)\n n = Div(d, r)"),
        g=normal(5, 1, seed=1, scale=1),
        b=normal(8, seed=2, scale=1),
    )
    x = normal(2, 5, 8, seed=3, scale=3)
    before = run(model, x=x)[0]
    fuse_layer_norms(model)
    clean_up(model)
    assert ops(model) == ["LayerNormalization", "Mul", "Add", "Relu"]
    np.testing.assert_allclose(run(model, x=x)[0], before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("axes", "second"), [("1", "1"), ("-1", "-2")]
)  # the channel axis of an image; two different axes
def test_what_is_no_layer_norm_stays(axes: str, second: str) -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 5, 8] x) => (float[2, 5, 8] y)
        <int64[1] axes = {{{axes}}}, int64[1] other = {{{second}}}, float eps = {{1e-5}}> {{
          mean = ReduceMean(x, axes)
          d = Sub(x, mean)
          sq = Mul(d, d)
          var = ReduceMean(sq, other)
          ve = Add(var, eps)
          r = Sqrt(ve)
          n = Div(d, r)
          y = Relu(n)
        }}"""
    )
    before = lines(model)
    fuse_layer_norms(model)
    assert lines(model) == before


@pytest.mark.parametrize(
    "products",
    [
        "a = Mul(x, p)\n y = Mul(a, half)",
        "a = Mul(half, x)\n y = Mul(a, p)",
        "a = Mul(p, half)\n y = Mul(x, a)",
        "a = Mul(x, p)\n y = Div(a, two)",
    ],
)
@pytest.mark.parametrize("inner", ["i = Div(x, root)", "i = Mul(inverse, x)"])
def test_a_written_out_gelu_is_one_operator(products: str, inner: str) -> None:
    model = from_text(
        f"""{HEAD} net (float[4, 8] x) => (float[4, 8] y)
        <float root = {{1.4142135381698608}}, float inverse = {{0.70710677}}, float one = {{1.0}},
         float half = {{0.5}}, float two = {{2.0}}> {{
          {inner}
          e = Erf(i)
          p = Add(e, one)
          {products}
        }}"""
    )
    x = normal(4, 8, seed=3, scale=2)
    before = run(model, x=x)[0]
    fuse_gelus(model)
    clean_up(model)
    assert lines(model) == ["y = Gelu(x)"]
    np.testing.assert_allclose(run(model, x=x)[0], before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "products", ["y = Mul(x, p)", "a = Mul(z, p)\n y = Mul(a, half)"]
)  # no half; another x
def test_what_is_no_gelu_stays(products: str) -> None:
    model = from_text(
        f"""{HEAD} net (float[4] x, float[4] z) => (float[4] y)
        <float root = {{1.4142135381698608}}, float one = {{1.0}}, float half = {{0.5}}> {{
          i = Div(x, root)
          e = Erf(i)
          p = Add(e, one)
          {products}
        }}"""
    )
    before = lines(model)
    fuse_gelus(model)
    assert lines(model) == before


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("a = Relu(x)\n y = Min(a, six)", "y = Clip(x, 0.0, 6.0)"),
        ("a = Max(x, one)\n y = Min(six, a)", "y = Clip(x, 1.0, 6.0)"),
        ("a = Min(x, six)\n y = Max(a, one)", "y = Clip(x, 1.0, 6.0)"),
        ("a = Clip(x, one, six)\n y = Relu(a)", "y = Clip(x, 1.0, 6.0)"),
        ("a = Relu(x)\n b = Relu(a)\n y = Clip(b, , six)", "y = Clip(x, 0.0, 6.0)"),
        ("y = Max(x, zero)", "y = Relu(x)"),
        ("y = Clip(x, zero)", "y = Relu(x)"),
        ("a = Max(x, six)\n y = Min(a, one)", "y = Clip(x, 1.0, 1.0)"),
    ],
)
def test_chains_of_bounds_become_one(chain: str, expected: str) -> None:
    model = from_text(
        f"""{HEAD} net (float[64] x) => (float[64] y)
        <float six = {{6.0}}, float one = {{1.0}}, float zero = {{0.0}}> {{ {chain} }}"""
    )
    x = normal(64, seed=3, scale=5)
    before = run(model, x=x)[0]
    merge_clips(model)
    clean_up(model)
    assert lines(model) == [expected]
    np.testing.assert_array_equal(run(model, x=x)[0], before)


def test_two_chains_on_one_input_keep_their_own_bounds() -> None:
    model = from_text(
        f"""{HEAD} net (float[64] x) => (float[64] y, float[64] z)
        <float six = {{6.0}}, float one = {{1.0}}> {{
          a = Relu(x)
          y = Min(a, six)
          b = Relu(x)
          z = Min(b, one)
        }}"""
    )
    x = normal(64, seed=3, scale=5)
    before = run(model, x=x)
    merge_clips(model)
    assert sorted(lines(model))[-2:] == ["y = Clip(x, 0.0, 6.0)", "z = Clip(x, 0.0, 1.0)"]
    for got, want in zip(run(model, x=x), before, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "kept", ["y = Min(x, x)", "y = Max(x, row)", "y = Clip(x, one, six)", "y = Relu(x)"]
)
def test_single_links_and_vectors_stay(kept: str) -> None:
    model = from_text(
        f"""{HEAD} net (float[3] x) => (float[3] y)
        <float six = {{6.0}}, float one = {{1.0}}, float[3] row = {{0.0, 0.0, 0.0}}> {{ {kept} }}"""
    )
    before = lines(model)
    merge_clips(model)
    assert lines(model) == before


@pytest.mark.parametrize(
    "node",
    [
        "a = Pad(x, none)",
        "a = Concat <axis = 0> (x)",
        "a = Transpose <perm = [0, 1]> (x)",
        "a = Cast <to = 1> (x)",
        "a = Reshape(x, same)",
        "a = Expand(x, ones)",
        "a = Slice(x, zero, many)",
        "a = Mul(unit, x)",
        "a = Add(x, nought)",
        "a = Div(x, unit)",
        "a = Pow(x, unit)",
    ],
)
def test_operators_that_give_their_input_back_go(node: str) -> None:
    model = from_text(
        f"""{HEAD} net (float[4, 6] x) => (float[4, 6] y)
        <int64[4] none = {{0, 0, 0, 0}}, int64[2] same = {{4, -1}}, int64[2] ones = {{1, 6}},
         int64[1] zero = {{0}}, int64[1] many = {{100}}, float unit = {{1.0}},
         float nought = {{0.0}}> {{
          {node}
          y = Relu(a)
        }}"""
    )
    remove_no_ops(model)
    assert lines(model) == ["y = Relu(x)"]


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("a = Reshape(x, other)", "6, 4"),
        ("a = Div(unit, x)", "4, 6"),
        ("a = Sub(nought, x)", "4, 6"),
        ("a = Mul(x, grow)", "1, 4, 6"),
        ("a = Slice(x, zero, many, zero, minus)", "1, 6"),
    ],
)
def test_operators_that_change_something_stay(node: str, shape: str) -> None:
    model = from_text(
        f"""{HEAD} net (float[4, 6] x) => (float[{shape}] y)
        <int64[2] other = {{6, 4}}, float unit = {{1.0}}, float nought = {{0.0}},
         float[1, 1, 1] grow = {{1.0}}, int64[1] zero = {{0}}, int64[1] many = {{100}},
         int64[1] minus = {{-1}}> {{
          {node}
          y = Relu(a)
        }}"""
    )
    before = lines(model)
    remove_no_ops(model)
    assert lines(model) == before


def test_a_no_op_that_gives_a_graph_output_passes_its_name_on() -> None:
    model = from_text(
        f"""{HEAD} net (float[4] x) => (float[4] y) <float unit = {{1.0}}> {{
          a = Relu(x)
          y = Mul(a, unit)
        }}"""
    )
    remove_no_ops(model)
    assert lines(model) == ["y = Relu(x)"]


def test_a_no_op_between_input_and_output_stays() -> None:
    model = from_text(
        f"{HEAD} net (float[4] x) => (float[4] y) <float unit = {{1.0}}> {{ y = Mul(x, unit) }}"
    )
    remove_no_ops(model)
    assert ops(model) == ["Mul"]
