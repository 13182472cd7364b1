"""The target ``tensorrt:smNN``: what it refuses, what it says, its rules, and networks from strangers."""

from __future__ import annotations

import time

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.calibration.scales import Scale
from fuseq.errors import OptionError, TargetError
from fuseq.formats import FP8, INT8
from fuseq.passes.canonical import canonicalize
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.placement.choices import PlanOptions
from fuseq.placement.plan import Plan
from fuseq.placement.planner import plan_everything
from fuseq.targets import parse_target
from fuseq.targets.base import ShapeProfile
from fuseq.targets.tensorrt import TensorRtSimulated
from fuseq.targets.tensorrt.rules import rules_for
from tests.targets.tensorrt_models import Builder, net, resnet18, simulate, types

SHAPE = "float[1, 32, 8, 8]"
CONV = "Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"


def test_named_like_the_others_and_says_that_it_predicts() -> None:
    target = parse_target("tensorrt:sm80")
    assert isinstance(target, TensorRtSimulated)
    assert target.name == "tensorrt:sm80" and target.missing() is None
    assert target.gpu.name == "A100 80GB PCIe" and target.predicts
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", "y = Relu(x)"))
    assert "not by the compiler" in engine.notes[0] and engine.plan_bytes is None
    assert all(kernel.predicted_us and kernel.measured_us is None for kernel in engine.kernels)


@pytest.mark.parametrize("device", ["sm60", "cpu", "sm"])
def test_unknown_device_names_the_known_ones(device: str) -> None:
    with pytest.raises(OptionError, match="sm75, sm80, sm86, sm89, sm90, sm120, sm121"):
        TensorRtSimulated.parse(device)


def test_formats_begin_with_their_capability() -> None:
    assert TensorRtSimulated.parse("sm80").storage_formats("int8") == (INT8, INT8)
    assert TensorRtSimulated.parse("sm89").storage_formats("fp8") == (FP8, FP8)
    with pytest.raises(TargetError, match="begin with sm89"):
        TensorRtSimulated.parse("sm80").rules("fp8")


# What TensorRT's parser or builder refuses.


def refusal(body: str, signature: str = f"({SHAPE} x) => ({SHAPE} y)", **options: object) -> str:
    with pytest.raises(TargetError) as caught:
        simulate(
            net(signature, body, str(options.get("stored", "int8"))),
            int(str(options.get("sm", 80))),
        )
    return str(caught.value)


def test_refuses_zero_points_scales_and_types() -> None:
    scale = f"({SHAPE} x) => ({SHAPE} y) <float s = {{0.1}}, int8 z = {{3}}, uint8 u = {{0}}, float n = {{0}}>"
    pair = "q = QuantizeLinear (x, {s}, {z})\ny = DequantizeLinear (q, {s}, {z})"
    assert "zero point is not 0" in refusal(pair.format(s="s", z="z"), scale)
    assert "not uint8" in refusal(pair.format(s="s", z="u"), scale)
    assert "zero, negative or NaN" in refusal(
        pair.format(s="n", z="z").replace("z)", "i)"), scale.replace("z = {3}", "i = {0}")
    )


def test_refuses_int32_bias_behind_dequantize() -> None:
    body = f"""
      xd = Pair<0.1> (x)
      w = Weight<32, 32, 3, 3> ()
      b = DequantizeLinear (stored, s)
      y = {CONV} (xd, w, b)
    """
    zeros = ", ".join(["0"] * 32)
    signature = f"({SHAPE} x) => ({SHAPE} y) <int32[32] stored = {{{zeros}}}, float s = {{0.1}}>"
    assert "DequantizeLinear" in refusal(body, signature) and "not int32" in refusal(
        body, signature
    )


def test_refuses_fp8_before_sm89_and_over_three_channels() -> None:
    body = f"xd = Pair<0.1> (x)\nw = Weight<32, 32, 3, 3> ()\ny = {CONV} (xd, w)"
    assert "fp8 begins with sm89, the target is sm80" in refusal(body, stored="fp8")
    stem = body.replace("32, 32, 3, 3", "32, 3, 3, 3")
    signature = f"(float[1, 3, 8, 8] x) => ({SHAPE} y)"
    assert "no FP8 convolution over 3 channels" in refusal(stem, signature, stored="fp8", sm=89)


def test_refuses_integer_operators_and_mixed_floats() -> None:
    signature = "(int8[1, 8] x, int8[8, 8] w) => (int32[1, 8] y)"
    assert "no MatMulInteger" in refusal("y = MatMulInteger(x, w)", signature)
    mixed = "(float[1, 8] x) => (float[1, 8] y) <float16 h = {1}>"
    assert "fp16 and fp32 meet" in refusal("y = Add(x, h)", mixed)


def test_input_without_a_shape_is_named() -> None:
    model = net("(float[N, 8] x) => (float[N, 8] y)", "y = Relu(x)")
    with pytest.raises(TargetError, match="'x' has no static shape"):
        TensorRtSimulated.parse("sm80").compile(model, ShapeProfile({}))


# The planner with TensorRT's rules.


def planned(model: ir.Model, fmt: str = "int8", capability: int = 80) -> Plan:
    rules = rules_for(FP8 if fmt == "fp8" else INT8, capability)
    return plan_everything(model, rules, target="tensorrt", user_format=fmt, precision="fp32")


def canonical(model: ir.Model) -> ir.Model:
    canonicalize(model)
    return model


def applied(model: ir.Model, plan: Plan) -> ir.Model:
    copy = model.clone()
    scales = {}
    for entry in plan.tensors:
        weight = copy.graph.initializers.get(entry.tensor)
        channels = (
            () if entry.axis is None or weight is None else (weight.shape.numpy()[entry.axis],)
        )  # type: ignore[union-attr]
        scales[entry.group] = Scale(
            np.full(channels, 0.1, np.float32), None, entry.format, entry.axis
        )
    insert_qdq(copy, plan, scales)
    return copy


def test_the_plan_of_resnet18_is_the_fastest_engine_of_the_four() -> None:
    model = canonical(resnet18(1))
    plan = planned(model)
    assert {entry.axis for entry in plan.tensors if entry.kind == "weight"} == {0}
    engine = simulate(applied(model, plan), 80, "fp16")
    assert types(engine) == ["quantize", *["convolution"] * 20, "pool", "convolution"]
    pool = [entry for entry in plan.tensors if entry.uses and entry.uses[0].node == "gap"]
    assert len(pool) == 1 and pool[0].region == "fc"


def test_pool_stays_float_when_its_reader_does() -> None:
    model = canonical(resnet18(1))
    rules = rules_for(INT8, 80)
    plan = plan_everything(
        model, rules, target="tensorrt", user_format="int8", precision="fp32",
        options=PlanOptions(exclude=("fc",)),
    )  # fmt: skip
    assert not [entry for entry in plan.tensors if entry.uses[0].node == "gap"]


def block(activation: str, groups: int = 1) -> ir.Model:
    """Conv, an activation, an Add with the input, a Conv."""
    made = Builder((1, 32, 8, 8))
    start = made.node("Relu", made.value, name="start")
    value = made.conv(start, "first", (32 // groups, 32), 3, groups=groups)
    if activation == "Silu":
        value = made.node("Mul", value, made.node("Sigmoid", value, name="gate"), name="silu")
    elif activation:
        value = made.node(activation, value)
    value = made.node("Add", value, start, name="join")
    made.conv(value, "second", (32, 32), 3)
    return canonical(made.finish())


def pairs_of(plan: Plan, node: str) -> set[int]:
    return {use.index for entry in plan.tensors for use in entry.uses if use.node == node}


def test_k19_add_behind_an_activation_gets_pairs_on_both_inputs() -> None:
    for activation, expected in (("", {1}), ("Silu", {0, 1}), ("Relu", {0, 1})):
        model = block(activation)
        plan = planned(model)
        assert pairs_of(plan, "join") == expected, activation
        engine = simulate(applied(model, plan), 80, "fp16")
        assert {k.type.value for k in engine.alone} == {"quantize"} and len(engine.alone) == 1
        float_types = {t.dtype for k in engine.kernels[2:-1] for t in k.inputs + k.outputs}
        assert float_types == {"int8"}, activation


def test_k25_depthwise_with_silu_stays_float_and_says_why() -> None:
    plan = planned(block("Silu", groups=32))
    region = next(region for region in plan.regions if region.name == "first")
    assert not region.quantized and "does not fuse Sigmoid" in region.reason
    relu = next(r for r in planned(block("Relu", groups=32)).regions if r.name == "first")
    assert relu.quantized


def test_fp8_rules() -> None:
    ada, hopper = rules_for(FP8, 89), rules_for(FP8, 90)
    assert (ada.linear_weights, ada.merges_linear) == ("tensor", True)
    assert (hopper.linear_weights, hopper.merges_linear) == ("channel", False)
    assert ada.depthwise and not rules_for(INT8, 89).depthwise
    assert not ada.attention and rules_for(INT8, 89).attention


# Networks from strangers.


def test_a_long_chain_and_a_wide_star_take_seconds() -> None:
    chain = Builder((1, 8))
    for _ in range(1_500):
        chain.node("Relu", chain.value)
    star = Builder((1, 8))
    source = star.value
    for _ in range(800):
        star.node("Relu", source)
    for model in (chain.finish(), star.finish()):
        started = time.perf_counter()
        engine = simulate(model)
        assert time.perf_counter() - started < 20
        assert len(engine.kernels) >= 1


def test_unknown_operators_and_names_are_carried_through() -> None:
    model = net(f"({SHAPE} x) => ({SHAPE} y)", "a = Relu(x)\ny = Relu(a)")
    node = next(iter(model.graph))
    node.op_type, node.domain, node.name = "Surprise", "com.example", "<script>\x07 name"
    engine = simulate(model)
    assert engine.kernels[0].type.value == "other"
    assert engine.kernels[0].nodes == ("<script>\x07 name",)


def test_subgraphs_run_as_one_unknown_kernel() -> None:
    body = """
      c = ReduceSum <keepdims = 0> (x)
      t = Greater(c, nought)
      y = If <then_branch = a () => (float[1, 32, 8, 8] p) { p = Identity(x) },
              else_branch = b () => (float[1, 32, 8, 8] q) { q = Neg(x) }> (t)
    """
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y) <float nought = {{0}}>", body))
    assert engine.kernels[-1].type.value == "other"
