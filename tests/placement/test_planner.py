"""The planner's decisions on small graphs, as golden text."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.formats import FP8, INT8
from fuseq.placement.choices import PlanOptions
from fuseq.placement.patterns import attention_at, epilogue, weighted
from fuseq.placement.plan import Plan
from fuseq.placement.planner import plan_everything
from fuseq.targets.tensorrt_rtx.rules import rules_for
from tests.graphs import attention_net, conv_net, from_text, named, normal


def _plan(model: ir.Model, fmt: str = "fp8", **options: object) -> Plan:
    rules = rules_for(FP8 if fmt == "fp8" else INT8)
    return plan_everything(
        model,
        rules,
        target="tensorrt-rtx:sm89",
        user_format=fmt,
        precision="fp16",
        options=PlanOptions(**options),  # type: ignore[arg-type]
    )


def _lines(plan: Plan) -> list[str]:
    return [
        f"{t.kind} {t.tensor} {t.format} axis={t.axis} group={t.group} "
        + " ".join(f"{use.node}[{use.index}]" for use in t.uses)
        for t in plan.tensors
    ]


def test_int8_residual_block_keeps_the_identity_branch_in_float() -> None:
    assert _lines(_plan(conv_net(), "int8")) == [
        "activation r0 int8 axis=None group=r0 n_c1[0]",
        "weight w1 int8 axis=None group=w1 n_c1[1]",
        "activation r1 int8 axis=None group=r1 n_c2[0]",
        "weight w2 int8 axis=None group=w2 n_c2[1]",
        "activation p int8 axis=None group=p n_y[0]",
        "weight w3 int8 axis=None group=w3 n_y[1]",
    ]


def test_fp8_residual_block_quantizes_the_identity_branch_and_not_the_convs_edge() -> None:
    lines = _lines(_plan(conv_net(), "fp8"))
    assert "activation r0 fp8 axis=None group=r0 n_s[1]" in lines
    assert not [line for line in lines if line.startswith("activation c2")]


def test_attention_gets_four_pairs_and_merged_products_one_scale() -> None:
    plan = _plan(attention_net())
    assert _lines(plan) == [
        "activation n fp8 axis=None group=n n_q0[0]",
        "weight wq fp8 axis=None group=merged:n n_q0[1]",
        "activation n fp8 axis=None group=n n_k0[0]",
        "weight wk fp8 axis=None group=merged:n n_k0[1]",
        "activation n fp8 axis=None group=n n_v0[0]",
        "weight wv fp8 axis=None group=merged:n n_v0[1]",
        "activation q fp8 axis=None group=q n_s0[0]",
        "activation k fp8 axis=None group=k n_s0[1]",
        "activation p fp8 axis=None group=p n_o0[0]",
        "activation v fp8 axis=None group=v n_o0[1]",
        "activation o fp8 axis=None group=o n_r[0]",
        "weight wo fp8 axis=1 group=wo n_r[1]",
    ]
    (softmax,) = [t for t in plan.tensors if t.tensor == "p"]
    assert softmax.known_amax == 1.0
    reasons = {region.name: region.reason for region in plan.regions}
    assert "no kernel reads a quantized normalization input" in reasons["n_n"]


def test_an_attention_cut_from_one_tensor_has_its_pair_before_the_split() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 16, 96] x) => (float[1, 2, 16, 16] y)
            <int64[4] heads = {0, 0, 2, 16}, float scale = {0.25}>
            {
              q0, k0, v0 = Split <axis = -1, num_outputs = 3> (x)
              q1 = Reshape(q0, heads)
              k1 = Reshape(k0, heads)
              v1 = Reshape(v0, heads)
              q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
              k = Transpose <perm = [0, 2, 3, 1]> (k1)
              v = Transpose <perm = [0, 2, 1, 3]> (v1)
              q = Mul(q2, scale)
              s = MatMul(q, k)
              p = Softmax <axis = -1> (s)
              y = MatMul(p, v)
            }"""
        )
    )
    for fmt in ("int8", "fp8"):
        assert _lines(_plan(model, fmt)) == [
            f"activation x {fmt} axis=None group=x n_q0[0]",
            f"activation p {fmt} axis=None group=p n_y[0]",
        ]


def test_depthwise_and_transposed_convolutions_are_refused_with_the_compile_run() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 8, 8, 8] x) => (float[1, 8, 16, 16] y) {
              d = Conv <group = 8, kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, wd)
              y = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (d, wt)
            }""",
            wd=normal(8, 1, 3, 3),
            wt=normal(8, 8, 2, 2),
        )
    )
    plan = _plan(model, "int8")
    assert not plan.tensors
    assert [(r.pattern, r.quantized) for r in plan.regions] == [
        ("depthwise convolution", False),
        ("transposed convolution", False),
    ]
    assert "padded from 1 to 4 channels" in plan.regions[0].reason
    assert "runs ConvTranspose in FP16" in plan.regions[1].reason


def test_a_weight_with_vanishing_channels_gets_scales_a_channel() -> None:
    model = conv_net()
    weight = model.graph.initializers["w1"]
    array = weight.const_value.numpy().copy()  # type: ignore[union-attr]
    array[:8] /= 1000.0
    weight.const_value = ir.tensor(array, name="w1")
    lines = _lines(_plan(model, "int8"))
    assert "weight w1 int8 axis=0 group=w1 n_c1[1]" in lines
    assert "weight w1 fp8 axis=None group=w1 n_c1[1]" in _lines(_plan(model, "fp8"))


def test_globs_keep_float_and_a_glob_without_match_is_said() -> None:
    plan = _plan(conv_net(), "int8", exclude=("n_c1", "vision*"))
    assert {t.region for t in plan.tensors} == {"n_c2", "n_y"}
    reasons = {region.name: region.reason for region in plan.regions}
    assert reasons["n_c1"] == "float: excluded by --exclude n_c1"
    assert plan.notes == ("--exclude vision* matched no layer with weights.",)


def test_first_and_last_layers_are_kept_by_option() -> None:
    plan = _plan(conv_net(), "int8", keep_first=True, keep_last=True)
    assert {t.region for t in plan.tensors} == {"n_c2"}


def test_one_scale_serves_both_sides_of_a_pass_through_op() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 8, 8, 8] x) => (float[1, 8, 8, 8] a, float[1, 8, 4, 4] b) {
              r = Relu(x)
              a = Conv <kernel_shape = [1, 1]> (r, wa)
              p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
              b = Conv <kernel_shape = [1, 1]> (p, wb)
            }""",
            wa=normal(8, 8, 1, 1),
            wb=normal(8, 8, 1, 1),
        )
    )
    groups = {t.tensor: t.group for t in _plan(model, "int8").tensors if t.kind == "activation"}
    assert groups == {"r": "r", "p": "r"}


def test_silu_is_part_of_the_conv_block() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 8, 8, 8] x) => (float[1, 8, 8, 8] y) {
              c = Conv <kernel_shape = [1, 1]> (x, w)
              s = Sigmoid(c)
              m = Mul(c, s)
              y = Relu(m)
            }""",
            w=normal(8, 8, 1, 1),
        )
    )
    conv = next(iter(model.graph))
    assert [step.name for step in epilogue(conv)] == ["n_s", "n_m", "n_y"]


def test_gemm_channel_axis_follows_trans_b() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 8] x) => (float[2, 4] y) {{ y = Gemm <transB = {trans}> (x, w) }}"""
    for trans, shape, axis in ((0, (8, 4), 1), (1, (4, 8), 0)):
        model = named(from_text(text.format(trans=trans), w=normal(*shape)))
        match = weighted(next(iter(model.graph)))
        assert match is not None and match.channel_axis == axis


def test_softmax_without_attention_says_why() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[2, 8] x) => (float[2, 8] y) { y = Softmax(x) }"""
        )
    )
    assert attention_at(next(iter(model.graph))) == (
        "the softmax output is not read by exactly one MatMul as its left input"
    )


def test_nan_weights_stay_float() -> None:
    model = conv_net()
    array = model.graph.initializers["w1"].const_value.numpy().copy()  # type: ignore[union-attr]
    array[0, 0, 0, 0] = np.nan
    model.graph.initializers["w1"].const_value = ir.tensor(array, name="w1")
    (region,) = [r for r in _plan(model).regions if r.name == "n_c1"]
    assert region.reason == "float: its weight has NaN or infinite values"


def test_rules_can_be_changed_as_data() -> None:
    rules = dataclasses.replace(rules_for(INT8), conv_weights="channel")
    plan = plan_everything(conv_net(), rules, target="t:x", user_format="int8", precision="fp16")
    assert {t.axis for t in plan.tensors if t.kind == "weight"} == {0}


def test_a_product_that_is_split_afterwards_has_one_scale() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[2, 8] x) => (float[2, 8] a, float[2, 8] b)
            <int64[2] sizes = {8, 8}>
            {
              m = MatMul(x, w)
              s = Add(m, bias)
              a, b = Split <axis = -1> (s, sizes)
            }""",
            w=normal(8, 16),
            bias=normal(16),
        )
    )
    (weight,) = [t for t in _plan(model).tensors if t.kind == "weight"]
    assert weight.axis is None
    assert "its output is split" in weight.reason
