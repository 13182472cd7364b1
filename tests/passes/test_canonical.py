"""The whole canonical form: one block as exporters of different years write it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.errors import ModelError
from fuseq.passes.canonical import canonicalize
from fuseq.passes.opset import OPSET
from tests.graphs import from_text, normal
from tests.passes.reading import lines, node_named, ops, run

WIDTH, HEADS = 8, 2
WEIGHTS = {
    **{f"w{name}": normal(WIDTH, WIDTH, seed=seed, scale=0.5) for seed, name in enumerate("qkvo")},
    **{f"b{name}": normal(WIDTH, seed=seed + 9) for seed, name in enumerate("qkvo")},
    "g": normal(WIDTH, seed=20, scale=1),
    "b": normal(WIDTH, seed=21),
    "w1": normal(WIDTH, 16, seed=22, scale=0.5),
    "b1": normal(16, seed=23),
    "w2": normal(16, WIDTH, seed=24, scale=0.5),
}

SCRIPT_11 = """<ir_version: 6, opset_import: ["" : 11]>
  net (float[b, 5, 8] x, int64[b, 5] mask) => (float[b, 5, 8] y) {
    mean = ReduceMean <axes = [-1]> (x)
    d = Sub(x, mean)
    two = Constant <value = float {2.0}> ()
    sq = Pow(d, two)
    var = ReduceMean <axes = [-1]> (sq)
    eps = Constant <value = float {1e-5}> ()
    ve = Add(var, eps)
    root = Sqrt(ve)
    n0 = Div(d, root)
    n1 = Mul(n0, g)
    n = Add(n1, b)
    u1 = Unsqueeze <axes = [1]> (mask)
    u2 = Unsqueeze <axes = [2]> (u1)
    f = Cast <to = 1> (u2)
    one = Constant <value = float {1.0}> ()
    low = Constant <value = float {-3.4028234663852886e38}> ()
    inv = Sub(one, f)
    m = Mul(inv, low)
    shape = Shape(n)
    i0 = Constant <value = int64 {0}> ()
    i1 = Constant <value = int64 {1}> ()
    s0 = Gather(shape, i0)
    s1 = Gather(shape, i1)
    e0 = Unsqueeze <axes = [0]> (s0)
    e1 = Unsqueeze <axes = [0]> (s1)
    h = Constant <value = int64[1] {2}> ()
    size = Constant <value = int64[1] {4}> ()
    cut = Concat <axis = 0> (e0, e1, h, size)
    q0 = MatMul(n, wq)
    q1 = Add(bq, q0)
    q2 = Reshape(q1, cut)
    q = Transpose <perm = [0, 2, 1, 3]> (q2)
    k0 = MatMul(n, wk)
    k1 = Add(bk, k0)
    k2 = Reshape(k1, cut)
    k = Transpose <perm = [0, 2, 3, 1]> (k2)
    v0 = MatMul(n, wv)
    v1 = Add(bv, v0)
    v2 = Reshape(v1, cut)
    v = Transpose <perm = [0, 2, 1, 3]> (v2)
    half = Constant <value = float {2.0}> ()
    qk = MatMul(q, k)
    sc = Div(qk, half)
    sm = Add(sc, m)
    p = Softmax <axis = 3> (sm)
    o0 = MatMul(p, v)
    o1 = Transpose <perm = [0, 2, 1, 3]> (o0)
    all = Constant <value = int64[1] {8}> ()
    join = Concat <axis = 0> (e0, e1, all)
    o2 = Reshape(o1, join)
    o3 = MatMul(o2, wo)
    o4 = Add(bo, o3)
    dr = Dropout <ratio = 0.1> (o4)
    r = Add(x, dr)
    h0 = MatMul(r, w1)
    h1 = Add(b1, h0)
    rt = Constant <value = float {1.41421354}> ()
    er0 = Div(h1, rt)
    er1 = Erf(er0)
    er2 = Add(er1, one)
    er3 = Mul(h1, er2)
    hf = Constant <value = float {0.5}> ()
    act = Mul(er3, hf)
    h2 = MatMul(act, w2)
    y = Add(r, h2)
  }"""

DYNAMO_23 = """<ir_version: 10, opset_import: ["" : 23]>
  net (float[b, 5, 8] x, int64[b, 5] mask) => (float[b, 5, 8] y)
  <int64[2] axes = {1, 2}, float one = {1.0}, float low = {-3.4028234663852886e38},
   int64[4] cut = {-1, 5, 2, 4}, int64[3] join = {-1, 5, 8}> {
    n = LayerNormalization <axis = -1, epsilon = 1e-5> (x, g, b)
    u = Unsqueeze(mask, axes)
    f = Cast <to = 1> (u)
    inv = Sub(one, f)
    m = Mul(inv, low)
    q0 = MatMul(n, wq)
    q1 = Add(q0, bq)
    q2 = Reshape(q1, cut)
    q = Transpose <perm = [0, 2, 1, 3]> (q2)
    k0 = MatMul(n, wk)
    k1 = Add(k0, bk)
    k2 = Reshape(k1, cut)
    k = Transpose <perm = [0, 2, 1, 3]> (k2)
    v0 = MatMul(n, wv)
    v1 = Add(v0, bv)
    v2 = Reshape(v1, cut)
    v = Transpose <perm = [0, 2, 1, 3]> (v2)
    o0 = Attention(q, k, v, m)
    o1 = Transpose <perm = [0, 2, 1, 3]> (o0)
    o2 = Reshape(o1, join)
    o3 = MatMul(o2, wo)
    o4 = Add(o3, bo)
    r = Add(x, o4)
    h0 = MatMul(r, w1)
    h1 = Add(h0, b1)
    act = Gelu(h1)
    h2 = MatMul(act, w2)
    y = Add(r, h2)
  }"""

CANONICAL = {
    "Add": 6,
    "Cast": 1,
    "Gelu": 1,
    "LayerNormalization": 1,
    "MatMul": 6,
    "Mul": 1,
    "Reshape": 4,
    "Softmax": 1,
    "Split": 1,
    "Sub": 1,
    "Transpose": 4,
    "Unsqueeze": 1,
}


def _feeds() -> dict[str, np.ndarray]:
    return {
        "x": normal(3, 5, 8, seed=30, scale=1),
        "mask": np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]], np.int64),
    }


def _counts(model: ir.Model) -> dict[str, int]:
    return {op: ops(model).count(op) for op in sorted(set(ops(model)))}


def test_an_encoder_of_2020_and_one_of_2026_meet_in_one_form() -> None:
    old = from_text(SCRIPT_11, **WEIGHTS)
    new = from_text(DYNAMO_23, **WEIGHTS)
    wanted = run(old, **_feeds())[0]
    old_notes, new_notes = canonicalize(old), canonicalize(new)
    assert old.opset_imports[""] == OPSET and new.opset_imports[""] == 23
    # the old one divides the scores, the new one multiplies Q; one mask Unsqueeze more
    assert _counts(old) == {**CANONICAL, "Div": 1, "Unsqueeze": 2}
    assert _counts(new) == {**CANONICAL, "Mul": 2, "Transpose": 5}
    for model in (old, new):
        np.testing.assert_allclose(run(model, **_feeds())[0], wanted, rtol=1e-5, atol=2e-6)
    assert old_notes == new_notes and "masked everywhere" in old_notes[0]


def test_canonical_form_is_a_fixed_point() -> None:
    model = from_text(DYNAMO_23, **WEIGHTS)
    canonicalize(model)
    before = lines(model)
    assert canonicalize(model) == []
    assert lines(model) == before


def test_metadata_of_the_exporter_stays_on_nodes_that_are_made_anew() -> None:
    model = from_text(SCRIPT_11, **WEIGHTS)
    for node in model.graph:
        node.metadata_props["line"] = f"model.py {node.outputs[0].name}"
    canonicalize(model)
    assert all(node.metadata_props.get("line") for node in model.graph)


def test_subgraphs_stay_float_and_are_named() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 3, 4, 4] x, bool c) => (float[1, 4, 4, 4] y) {
          a = Conv(x, w)
          n = BatchNormalization(a, g, b, m, v)
          y = If (c) <
            then_branch = t () => (float[1, 4, 4, 4] p) { p = Relu(n) },
            else_branch = e () => (float[1, 4, 4, 4] q) { q = Neg(n) }>
        }""",
        w=normal(4, 3, 1, 1),
        g=np.ones(4, np.float32),
        b=np.ones(4, np.float32),
        m=np.zeros(4, np.float32),
        v=np.ones(4, np.float32),
    )
    x = normal(1, 3, 4, 4, seed=1, scale=1)
    before = [run(model, x=x, c=np.array(c))[0] for c in (True, False)]
    (note,) = canonicalize(model)
    assert note.startswith("the subgraphs of If '") and "in float" in note
    assert ops(model) == ["Conv", "If"]  # n is read inside the If only, and Conv feeds it
    for c, want in zip((True, False), before, strict=True):
        np.testing.assert_allclose(run(model, x=x, c=np.array(c))[0], want, rtol=1e-5, atol=1e-6)


def test_a_loop_runs_as_before() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[4] x, int64 n) => (float[4] y) <bool yes = {1}> {
          r = Relu(x)
          y = Loop (n, yes, r) <body = step (int64 i, bool go, float[4] s) => (bool on, float[4] t)
            { on = Identity(go)
              t = Add(s, r) }>
        }"""
    )
    feeds = {"x": np.array([1, -2, 3, 4], np.float32), "n": np.array(3)}
    before = run(model, **feeds)[0]
    canonicalize(model)
    np.testing.assert_array_equal(run(model, **feeds)[0], before)


def test_resnet_of_opset_11_with_initializers_as_inputs() -> None:
    model = from_text(
        """<ir_version: 3, opset_import: ["" : 11]>
        net (float[b, 3, 8, 8] x) => (float[b, 10] y) {
          p = Pad <mode = "constant"> (x, pads)
          c = Conv(p, w)
          n = BatchNormalization(c, g, b, m, v)
          r = Relu(n)
          s = Min(r, six)
          u = Resize <mode = "nearest"> (s, roi, scales)
          a = GlobalAveragePool(u)
          f = Flatten(a)
          y = Gemm <transB = 1> (f, wf, bf)
        }""",
        w=normal(4, 3, 3, 3),
        g=normal(4, seed=1, scale=1),
        b=normal(4, seed=2),
        m=normal(4, seed=3),
        v=np.ones(4, np.float32),
        wf=normal(10, 4, seed=4),
        bf=normal(10, seed=5),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        six=np.array(6, np.float32),
        roi=np.zeros(0, np.float32),
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    for value in list(model.graph.initializers.values()):
        model.graph.inputs.append(value)
    x = normal(2, 3, 8, 8, seed=9, scale=2)
    before = run(model, x=x)[0]
    assert canonicalize(model) == []
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert ops(model) == ["Conv", "Clip", "Resize", "GlobalAveragePool", "Flatten", "Gemm"]
    np.testing.assert_allclose(run(model, x=x)[0], before, rtol=1e-5, atol=1e-6)


def test_k91_two_convs_that_read_one_concat() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 2, 4, 4] x) => (float[1, 4, 4, 4] y, float[1, 4, 4, 4] z) {
          c = Concat <axis = 1> (x, x)
          y = Conv(c, w, bias)
          z = Conv(c, w, bias)
        }""",
        w=normal(4, 4, 1, 1),
        bias=normal(4),
    )
    canonicalize(model)
    assert lines(model)[0] == "c = Concat(x, x)"
    assert {node.op_type for node in model.graph} >= {"Concat", "Conv"}
    assert len(run(model, x=normal(1, 2, 4, 4))) == 2


def test_what_has_no_conversion_is_named() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 9]>
        net (float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y) <float[4] s = {1, 1, 2, 2}> {
          y = Upsample <mode = "linear"> (x, s)
        }"""
    )
    try:
        canonicalize(model)
    except ModelError as error:
        assert "opset 9" in str(error) and f"opset_version={OPSET}" in str(error)
    else:
        assert "Upsample" not in ops(model)


@pytest.mark.parametrize("opset", [21, 23, 25])
def test_a_newer_opset_is_kept(opset: int) -> None:
    model = from_text(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        net (float[4] x) => (float[4] y) {{ y = Relu(x) }}"""
    )
    canonicalize(model)
    assert model.opset_imports[""] == opset
    assert node_named(model, model.graph[0].name or "").op_type == "Relu"


def test_the_default_domain_may_be_spelled_out() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["ai.onnx" : 13]>
        net (float[4] x) => (float[4] y) { y = Relu(x) }"""
    )
    canonicalize(model)
    assert dict(model.opset_imports) == {"": OPSET}
