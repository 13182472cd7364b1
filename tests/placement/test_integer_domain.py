"""Integer islands for onnxruntime:cpu: golden plans, the kernels ONNX Runtime makes of them, numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.passes.integer_form import to_integer_form
from fuseq.placement.plan import Plan
from fuseq.targets.fusion import Cost
from fuseq.targets.onnxruntime.costs import NARROW, WIDE
from tests.graphs import from_text, named, normal
from tests.islands import Feeds, case_of, kernels, listing, optimized, plan_of, run, sqnr_db

NET = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[n, 3, 16, 16] x) => (float[n, 10] y)
<int64[2] image = {2, 3}, float low = {0.0}, float high = {6.0},
 float[4] twice = {1.0, 1.0, 2.0, 2.0}>
{
  c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
  r1 = Clip(c1, low, high)
  d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 16> (r1, wd, b1)
  r2 = Relu(d)
  m = GlobalAveragePool(r2)
  e1 = Conv (m, ws, b1)
  g = Sigmoid(e1)
  s = Mul(r2, g)
  c2 = Conv (s, wp, b1)
  a = Add(c2, r1)
  r3 = Relu(a)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r3)
  u = Resize <mode = "nearest"> (p, , twice)
  k = Concat <axis = 1> (u, r3)
  c3 = Conv (k, wk, bk)
  v = ReduceMean <keepdims = 0> (c3, image)
  y = Gemm <transB = 1> (v, wf, bf)
}"""

GOLDEN = """\
int   conv block: n_c1 n_r1
int   depthwise convolution: n_d n_r2
int   GlobalAveragePool: n_m
int   squeeze-excite layer: n_e1
int   Sigmoid: n_g
int   Mul: n_s
int   conv block: n_c2
int   residual join: n_a n_r3
int   MaxPool: n_p
int   Resize: n_u
int   Concat: n_k
int   conv block: n_c3
int   GlobalAveragePool: n_v_pool
int   Flatten: n_v
int   head: n_y
n_c1: x uint8 -> n_c1.0
n_c1: w1 int7[0] -> n_c1.1
n_c1: b1@bias:n_c1 int32[0] -> n_c1.2
n_c1: r1 uint8 (0.0, 6.0) -> n_d.0 n_a.1
n_d: r1 uint8 (0.0, 6.0) -> n_d.0
n_d: wd int7[0] -> n_d.1
n_d: b1@bias:n_d int32[0] -> n_d.2
n_d: r2 uint8 (0.0, None) -> n_m.0 n_s.0
n_m: r2 uint8 (0.0, None) -> n_m.0
n_m: m uint8 -> n_e1.0
n_e1: m uint8 -> n_e1.0
n_e1: ws int7[0] -> n_e1.1
n_e1: b1@bias:n_e1 int32[0] -> n_e1.2
n_e1: e1 uint8 -> n_g.0
n_g: e1 uint8 -> n_g.0
n_g: g uint8 (0.0, 1.0) -> n_s.1
n_s: r2 uint8 (0.0, None) -> n_s.0
n_s: g uint8 (0.0, 1.0) -> n_s.1
n_s: s uint8 -> n_c2.0
n_c2: s uint8 -> n_c2.0
n_c2: wp int7[0] -> n_c2.1
n_c2: b1@bias:n_c2 int32[0] -> n_c2.2
n_c2: c2 uint8 -> n_a.0
n_a: c2 uint8 -> n_a.0
n_a: r1 uint8 (0.0, 6.0) -> n_a.1
n_a: r3 uint8 (0.0, None) -> n_p.0 n_k.1
n_p: r3 uint8 (0.0, None) -> n_p.0
n_p: p@r3 uint8 (0.0, None) -> n_u.0
n_u: p@r3 uint8 (0.0, None) -> n_u.0
n_u: u@r3 uint8 (0.0, None) -> n_k.0
n_k: u@r3 uint8 (0.0, None) -> n_k.0
n_k: r3 uint8 (0.0, None) -> n_k.1
n_k: k uint8 -> n_c3.0
n_c3: k uint8 -> n_c3.0
n_c3: wk int7[0] -> n_c3.1
n_c3: bk@bias:n_c3 int32[0] -> n_c3.2
n_c3: c3 uint8 -> n_v_pool.0
n_v_pool: c3 uint8 -> n_v_pool.0
n_v_pool: v_pooled uint8 -> n_v.0
n_v: v_pooled uint8 -> n_v.0
n_v: v@v_pooled uint8 -> n_y.0
n_y: v@v_pooled uint8 -> n_y.0
n_y: wf int7[0] -> n_y.1
n_y: bf@bias:n_y int32[0] -> n_y.2"""


def _net() -> ir.Model:
    model = from_text(
        NET,
        w1=normal(16, 3, 3, 3, seed=1, scale=0.3),
        b1=normal(16, seed=2),
        wd=normal(16, 1, 3, 3, seed=3, scale=0.4),
        ws=normal(16, 16, 1, 1, seed=4, scale=0.4),
        wp=normal(16, 16, 1, 1, seed=5, scale=0.3),
        wk=normal(8, 32, 1, 1, seed=6, scale=0.3),
        bk=normal(8, seed=7),
        wf=normal(10, 8, seed=8, scale=0.5),
        bf=normal(10, seed=9),
    )
    to_integer_form(named(model))
    return model


def _feeds(*shape: int) -> Feeds:
    return {"x": normal(*shape, seed=42, scale=1.0)}


def _model(body: str, image: int = 8, outputs: str = "float[n, 8, m, m] y") -> ir.Model:
    """A graph on x [n, 8, image, image]; w (3x3), v (1x1), wd (depthwise) and b at hand."""
    text = (
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        f"net (float[n, 8, {image}, {image}] x) => ({outputs})\n"
        "<float low = {0.0}, float high = {6.0}, float one = {1.0}, float minus = {-1.0}>\n"
        f"{{\n{body}\n}}"
    )
    weights = {
        "w": normal(8, 8, 3, 3, seed=1, scale=0.2),
        "v": normal(8, 8, 1, 1, seed=2, scale=0.4),
        "wd": normal(8, 1, 3, 3, seed=3, scale=0.4),
        "wt": normal(8, 8, 2, 2, seed=4, scale=0.3),
        "b": normal(8, seed=5),
    }
    used = {
        name: array for name, array in weights.items() if f"{name}," in body or f"{name})" in body
    }
    return named(from_text(text, **used))


CONV = "Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"


def test_golden_plan_of_a_small_net() -> None:
    assert listing(plan_of(_net())) == GOLDEN


def test_the_small_net_becomes_integer_kernels_alone() -> None:
    model, feeds = _net(), _feeds(4, 3, 16, 16)
    case = case_of(model, feeds)
    assert kernels(case.quantized) == {
        "QuantizeLinear": 1,
        "Transpose": 2,
        "QLinearConv": 5,
        "QLinearGlobalAveragePool": 2,
        "QLinearSigmoid": 1,
        "QLinearMul": 1,
        "QLinearAdd": 1,
        "NhwcMaxPool": 1,
        "Resize": 1,
        "QLinearConcat": 1,
        "Flatten": 1,
        "QGemm": 1,
    }
    assert sqnr_db(run(model, feeds), run(case.quantized, feeds)) > 35


def test_plans_with_limits_survive_json() -> None:
    plan = plan_of(_net())
    assert Plan.from_json(plan.to_json()) == plan


def test_a_conv_block_equals_integer_arithmetic_in_numpy() -> None:
    model = _model("c = Conv(x, v, b)\ny = Relu(c)", image=2, outputs="float[n, 8, 2, 2] y")
    feeds = _feeds(3, 8, 2, 2)
    case = case_of(model, feeds)
    weight = model.graph.initializers["v"].const_value
    bias = model.graph.initializers["b"].const_value
    assert weight is not None and bias is not None
    into, out = case.scales["x"], case.scales["y"]
    of_weight = case.scales["v"].scale.astype(np.float64)
    assert into.zero_point is not None and out.zero_point == 0
    x = np.clip(np.rint(feeds["x"] / into.scale) + into.zero_point, 0, 255) - into.zero_point
    w = np.rint(weight.numpy()[:, :, 0, 0] / of_weight[:, None])
    b = np.rint(bias.numpy() / (of_weight * float(into.scale)))
    assert np.abs(w).max() == 63  # seven bits
    sums = np.einsum("nchw,oc->nohw", x, w) + b[:, None, None]
    real = sums * (of_weight * float(into.scale) / float(out.scale))[:, None, None]
    expected = np.clip(np.rint(real), 0, 255) * float(out.scale)
    np.testing.assert_allclose(run(case.quantized, feeds), expected, rtol=1e-6, atol=0)


def test_relu6_is_absorbed_because_its_range_stays_within_six() -> None:
    model = _model(f"c = {CONV} (x, w, b)\nr = Clip(c, low, high)\ny = {CONV} (r, w, b)")
    feeds = {"x": 20 * _feeds(2, 8, 8, 8)["x"]}
    case = case_of(model, feeds)
    assert case.scales["r"].zero_point == 0
    assert np.float32(case.scales["r"].scale * np.float32(255)) <= np.float32(6)
    assert np.float32(case.scales["r"].scale * np.float32(255)) > 5.99
    assert "Clip" not in kernels(case.quantized)
    assert kernels(case.quantized)["QLinearConv"] == 2


def test_a_clip_between_two_signs_is_absorbed_because_its_scale_shrinks() -> None:
    """Zero point 127 of [-1, 1] would store up to 128 / 127.5."""
    body = f"c = {CONV} (x, w, b)\nr = Clip(c, minus, one)\ny = {CONV} (r, w, b)"
    case = case_of(_model(body), {"x": 20 * _feeds(2, 8, 8, 8)["x"]})
    assert case.scales["r"].scale == np.float32(1 / 128)
    assert "Clip" not in kernels(case.quantized)


def test_an_activation_without_zero_is_not_absorbed() -> None:
    body = f"c = {CONV} (x, w, b)\nr = Clip(c, one, high)\ny = {CONV} (r, w, b)"
    case = case_of(_model(body), _feeds(2, 8, 8, 8))
    assert case.reason("n_r").startswith("float: Clip has no uint8 kernel on this target")
    assert kernels(case.quantized)["Clip"] == 1


def test_every_reader_of_a_quantized_tensor_reads_it_quantized() -> None:
    body = f"c = {CONV} (x, w, b)\nt = Tanh(c)\nd = Conv (c, v, b)\ny = Add(t, d)"
    outputs = "float[n, 8, 8, 8] y, float[n, 8, 8, 8] c"
    model = _model(body, outputs=outputs)
    feeds = _feeds(2, 8, 8, 8)
    plan = plan_of(model, exclude=("n_y",))
    by_region = {e.region: e.uses for e in plan.tensors if e.tensor == "c" and len(e.uses) > 1}
    assert {(use.node, use.index) for use in by_region["n_c"]} == {
        ("n_t", 0),
        ("n_d", 0),
        ("", 1),
    }
    assert kernels(case_of(model, feeds, plan).quantized)["QLinearConv"] == 2


def test_an_operator_without_integer_kernel_splits_and_says_so() -> None:
    case = case_of(
        _model(f"c = {CONV} (x, w, b)\nt = Tanh(c)\ny = {CONV} (t, w, b)"), _feeds(2, 8, 8, 8)
    )
    assert case.reason("n_t") == (
        "float: Tanh has no uint8 kernel on this target; it ends the integers around it"
    )
    found = kernels(case.quantized)
    assert (found["QLinearConv"], found["Tanh"]) == (2, 1)
    assert (found["QuantizeLinear"], found["DequantizeLinear"]) == (2, 2)


def test_an_island_that_does_not_repay_its_conversions_stays_float() -> None:
    body = f"c = {CONV} (x, w, b)\nt = Tanh(c)\ns = Sigmoid(t)\nz = Tanh(s)\ny = {CONV} (z, w, b)"
    costs = dataclasses.replace(WIDE, conv_mac=Cost(0.1, 0.01), kernel_ns=0.0)
    plan = plan_of(_model(body), costs)
    found = {region.name: region for region in plan.regions}
    assert found["n_c"].quantized and found["n_y"].quantized
    assert not found["n_s"].quantized
    assert "and converting at its ends would cost" in found["n_s"].reason


def test_a_kernel_that_is_slower_on_integers_stays_float() -> None:
    plan = plan_of(_model("y = Softmax <axis = 1> (x)"), WIDE)
    assert not plan.tensors
    assert plan.regions[0].reason == (
        "float: its integer kernel is estimated at 5.6 us a sample, the float one at 3.9 us"
    )


def test_nothing_pays_where_integer_products_are_no_faster() -> None:
    plan = plan_of(_net(), NARROW)
    assert not plan.tensors
    (note,) = plan.notes
    assert note.startswith("0 of 15 operators with integer kernels run on integers: by estimated ")


def test_full_quantizes_every_layer_with_weights_and_what_follows_from_it() -> None:
    complete = plan_of(_net(), NARROW, policy="full")
    assert listing(complete) == GOLDEN
    assert complete.policy == "full"


def test_a_float_fusion_that_integers_would_break_is_counted() -> None:
    """HardSwish is free in float behind a float convolution, not behind an integer one."""
    costs = dataclasses.replace(
        WIDE,
        conv_mac=Cost(0.02, 0.02),
        conv_output=Cost(0.2, 0.1),
        dequantize_ns=0.0,
        quantize_ns=0.0,
        kernel_ns=0.0,
    )
    body = "c = Conv (x, v, b)\ny = HardSwish(c)"
    assert not plan_of(_model(body), costs).tensors
    free = dataclasses.replace(costs, unfused_ns={})
    assert plan_of(_model(body), free).tensors


def test_excluded_convolutions_stay_float_and_onnxruntime_leaves_their_weights() -> None:
    body = f"c = {CONV} (x, w, b)\nd = Conv (c, v, b)\nr = Relu(d)\ny = {CONV} (r, w, b)"
    model, feeds = _model(body), _feeds(2, 8, 8, 8)
    case = case_of(model, feeds, plan_of(model, exclude=("n_d",)))
    assert case.reason("n_d") == "float: excluded by --exclude n_d"
    graph = optimized(case.quantized).graph
    assert [node.op_type for node in graph.node].count("QLinearConv") == 2
    types = {i.name: i.data_type for i in graph.initializer}
    convs = [node for node in graph.node if node.op_type in ("Conv", "FusedConv")]
    assert [types[node.input[1]] for node in convs] == [1]  # FLOAT


def test_transposed_convolutions_stay_float_with_float_weights() -> None:
    up = "ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]>"
    body = f"c = {CONV} (x, w, b)\nd = {up} (c, wt, b)\nr = Relu(d)\ny = {CONV} (r, w, b)"
    case = case_of(_model(body), _feeds(2, 8, 8, 8))
    assert "no integer ConvTranspose" in case.reason("n_d")
    graph = optimized(case.quantized).graph
    types = {i.name: i.data_type for i in graph.initializer}
    (transposed,) = [node for node in graph.node if node.op_type == "ConvTranspose"]
    assert types[transposed.input[1]] == 1
    counts = [node.op_type for node in graph.node]
    assert (counts.count("QuantizeLinear"), counts.count("DequantizeLinear")) == (2, 2)


def test_dropping_any_region_leaves_a_model_that_runs() -> None:
    """Calibration drops regions one by one, for tensors that are always zero."""
    model, feeds = _net(), _feeds(2, 3, 16, 16)
    exact = run(model, feeds)
    plan = plan_of(model)
    for region in plan.regions:
        case = case_of(model, feeds, plan.without([region.name], "float: dropped"))
        assert sqnr_db(exact, run(case.quantized, feeds)) > 33, region.name


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = Add(x, x)", "it reads one tensor twice"),
        ("y = Mul(x, b)", "it reads a constant, which would be rounded to eight bits"),
        (
            "s = Shape(x)\ny = Resize <mode = \"linear\"> (x, , , s)",
            "only the nearest mode of Resize has an integer kernel",
        ),
        ("y, i = MaxPool <kernel_shape = [2, 2]> (x)\nj = Identity(i)", "indices"),
        ("w2 = Mul(v, high)\nc = Conv(x, w2, b)\ny = Relu(c)", ""),
    ],
)  # fmt: skip
def test_refusals_are_sentences(body: str, why: str) -> None:
    outputs = "float[n, 8, m, m] y, int64[n, 8, m, m] j" if "j =" in body else "float[n, 8, m, m] y"
    plan = plan_of(_model(body, outputs=outputs))
    assert not plan.tensors
    reasons = [region.reason for region in plan.regions]
    assert all(reason.startswith("float: ") for reason in reasons)
    if why:
        assert why in " ".join(reasons)


def test_a_tensor_that_a_subgraph_reads_stays_float() -> None:
    body = (
        f"c = {CONV} (x, w, b)\n"
        "s = ReduceSum <keepdims = 0> (c)\n"
        "q = Greater(s, low)\n"
        "y = If (q) <then_branch = a () => (float[n, 8, 8, 8] t) { t = Identity(c) }, "
        "else_branch = e () => (float[n, 8, 8, 8] f) { f = Neg(c) }>"
    )
    plan = plan_of(_model(body))
    assert {r.name: r.reason for r in plan.regions} == {"n_c": "float: a subgraph reads its output"}


LINEAR = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[n, t, 16] x) => (float[n, t, 16] y)
{{
  l = LayerNormalization <axis = -1> (x, g)
  p = MatMul(l, w)
  q = Add({add})
  h = Gelu(q)
  r = MatMul(h, v)
  y = Add(r, x)
}}"""


@pytest.mark.parametrize("add", ["p, b", "b, p"])
def test_linear_layers_of_any_batch_and_length_read_integers_and_write_float(add: str) -> None:
    weights = {"g": np.ones(16, np.float32), "b": normal(32, seed=3)}
    weights |= {"w": normal(16, 32, seed=1, scale=0.3), "v": normal(32, 16, seed=2, scale=0.3)}
    model = named(from_text(LINEAR.format(add=add), **weights))
    to_integer_form(model)
    feeds = _feeds(2, 5, 16)
    case = case_of(model, feeds, plan_of(model, policy="full", costs=WIDE))
    found = kernels(case.quantized)
    assert (found["QGemm"], found["MatMulIntegerToFloat"]) == (1, 1)
    assert found["QuantizeLinear"] == 2
    assert "DequantizeLinear" not in found
    assert sqnr_db(run(model, feeds), run(case.quantized, feeds)) > 35


def test_a_linear_layer_writes_integers_where_only_integers_read_it() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 16] x) => (float[n, 8] y)
    { a = Gemm(x, w, b)  r = Relu(a)  y = Gemm(r, v) }"""
    weights = {"w": normal(16, 32, seed=1, scale=0.3), "v": normal(32, 8, seed=2, scale=0.3)}
    model = named(from_text(text, b=normal(32, seed=3), **weights))
    case = case_of(model, _feeds(4, 16))
    assert kernels(case.quantized) == {"QuantizeLinear": 1, "QGemm": 2}


def test_hard_swish_and_hard_sigmoid_run_on_integers() -> None:
    body = f"c = {CONV} (x, w, b)\nh = HardSwish(c)\nd = Conv (h, v, b)\ny = HardSigmoid(d)"
    model = _model(body)
    feeds = {"x": 8 * _feeds(2, 8, 8, 8)["x"]}
    case = case_of(model, feeds)
    assert kernels(case.quantized) == {
        "QuantizeLinear": 1,
        "Transpose": 2,
        "QLinearConv": 4,
        "QLinearMul": 1,
        "DequantizeLinear": 1,
    }
    assert sqnr_db(run(model, feeds), run(case.quantized, feeds)) > 30
