"""fix: scales bit-equal, the same graph after strip and apply, nothing the second time, the cases."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.calibration.scales import Scale
from fuseq.calibration.tensor_scales import constant_scales
from fuseq.errors import TargetError
from fuseq.fixing import Fixed, _or_own_placement, fix
from fuseq.model import load, save
from fuseq.options import QuantizeOptions
from fuseq.passes.canonical import canonicalize
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.passes.typing import set_precision
from fuseq.placement.planner import plan_everything
from fuseq.planning import silent
from fuseq.targets import parse_target
from tests.graphs import attention_net, conv_net, from_text, named, normal
from tests.same_graph import signature

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
TRT = QuantizeOptions(target="tensorrt:sm89", policy="full", batch=1)
RTX = QuantizeOptions(target="tensorrt-rtx:sm89", policy="full", batch=1)
CPU = QuantizeOptions(target="onnxruntime:cpu", policy="full", batch=1)


def _run(model: ir.Model, **feeds: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0])


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def _quantized(
    model: ir.Model, target: str, fmt: str, precision: str, seed: int = 0
) -> tuple[ir.Model, dict[str, float]]:
    """What fuseq writes for a target, with activation scales drawn at random; and the scales."""
    canonicalize(model)
    rules = parse_target(target).rules(fmt)
    plan = plan_everything(model, rules, target=target, user_format=fmt, precision=precision)
    rng = np.random.default_rng(seed)
    drawn: dict[str, Scale] = {}
    for group, entries in plan.groups().items():
        if entries[0].kind == "activation":
            scale = np.asarray(np.float16(rng.uniform(0.01, 0.1)), np.float32)
            drawn[group] = Scale(scale, None, entries[0].format)
    insert_qdq(model, plan, {**constant_scales(plan, model, precision), **drawn})
    set_precision(model, precision)
    again = ir.from_proto(ir.to_proto(model))
    by_tensor = {
        t.tensor: float(drawn[t.group].scale) for t in plan.tensors if t.kind == "activation"
    }
    return again, by_tensor


def _actions(result: Fixed, kind: str = "") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for change in result.changes:
        if not kind or change.kind == kind:
            found.setdefault(change.action, []).append(change.tensor)
    return found


def _scales_at(model: ir.Model) -> dict[str, float]:
    """Scale of each activation pair by the node that reads it."""
    found = {}
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0].producer() is not None:
            scale = node.inputs[1].const_value
            for user, index in node.outputs[0].uses():
                found[f"{user.name}[{index}]"] = float(scale.numpy().reshape(-1)[0])
    return found


# Properties.


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["conv", "attention", "plain"]),
    st.sampled_from(["int8", "fp8"]),
    st.sampled_from(["tensorrt:sm89", "tensorrt:sm90"]),
    st.sampled_from(["fp16", "fp32"]),
    st.integers(0, 1000),
)
def test_strip_then_apply_gives_back_the_graph(
    net: str, fmt: str, target: str, precision: str, seed: int
) -> None:
    float_model = {
        "conv": lambda: conv_net(channels=16),
        "attention": attention_net,
        "plain": lambda: conv_net(residual=False, channels=16),
    }[net]()
    model, _ = _quantized(float_model, target, fmt, precision, seed)
    options = QuantizeOptions(target=target, precision=precision, batch=1)
    result = fix(model, options=options, fmt=fmt, keep_placement=True)  # type: ignore[arg-type]
    assert signature(result.model) == signature(model)
    assert set(_actions(result)) == {"kept"}


@pytest.mark.parametrize("fmt", ["int8", "fp8"])
@pytest.mark.parametrize("net", ["conv", "attention"])
def test_a_model_of_fuseq_comes_out_as_it_went_in(net: str, fmt: str) -> None:
    float_model = conv_net() if net == "conv" else attention_net(length=128, size=64)
    model, _ = _quantized(float_model, RTX.target, fmt, "fp16")
    result = fix(model, options=RTX)
    assert signature(result.model) == signature(model)
    assert set(_actions(result)) == {"kept"}


def _naive(residual: bool = True, scale_type: type = np.float32, zero: str = "int8 0") -> ir.Model:
    """A residual block with pairs at convolution inputs alone and per-channel weights, as tools write it."""
    kind, point = zero.split()
    text = f"""{HEAD}
    net (float[1, 16, 8, 8] x) => (float[1, 16, 4, 4] y)
    <{kind} z = {{{point}}}> {{
      r0 = Relu(x)
      q0 = QuantizeLinear(r0, s0, z)
      d0 = DequantizeLinear(q0, s0, z)
      v1 = QuantizeLinear <axis = 0> (w1, t1, wz)
      e1 = DequantizeLinear <axis = 0> (v1, t1, wz)
      c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d0, e1, b1)
      r1 = Relu(c1)
      q1 = QuantizeLinear(r1, s1, z)
      d1 = DequantizeLinear(q1, s1, z)
      v2 = QuantizeLinear <axis = 0> (w2, t2, wz)
      e2 = DequantizeLinear <axis = 0> (v2, t2, wz)
      c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d1, e2)
      s = {"Add(c2, r0)" if residual else "Identity(c2)"}
      r2 = Relu(s)
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
      q3 = QuantizeLinear(p, s3, z)
      d3 = DequantizeLinear(q3, s3, z)
      v3 = QuantizeLinear <axis = 0> (w3, t3, wz)
      e3 = DequantizeLinear <axis = 0> (v3, t3, wz)
      y = Conv <kernel_shape = [1, 1]> (d3, e3)
    }}"""
    shapes = {"1": (16, 16, 3, 3), "2": (16, 16, 3, 3), "3": (16, 16, 1, 1)}
    arrays: dict[str, np.ndarray] = {"b1": normal(16), "wz": np.zeros(16, np.int8)}
    for number, shape in shapes.items():
        weight = normal(*shape, seed=int(number))
        arrays[f"w{number}"] = weight
        amax = np.abs(weight).reshape(16, -1).max(1)
        arrays[f"t{number}"] = (amax / 127).astype(scale_type)
    for name, scale in (("s0", 0.021), ("s1", 0.013), ("s3", 0.017)):
        arrays[name] = np.asarray(scale, scale_type)
    return named(from_text(text, **arrays))


@pytest.mark.parametrize("options", [TRT, RTX, CPU], ids=lambda o: o.target)
def test_a_second_fix_changes_nothing(options: QuantizeOptions, tmp_path: Path) -> None:
    first = fix(_naive(), tmp_path / "first.onnx", options=options)
    second = fix(tmp_path / "first.onnx", tmp_path / "second.onnx", options=options)
    assert signature(second.model) == signature(first.model)
    assert set(_actions(second)) <= {"kept", "left float"}
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()


# Scales.


def test_k1_the_identity_branch_and_the_pool_get_the_scales_that_their_tensors_have() -> None:
    result = fix(_naive(scale_type=np.float16), options=TRT)
    found = _scales_at(result.model)
    half = {name: float(np.float16(s)) for name, s in (("s0", 0.021), ("s1", 0.013), ("s3", 0.017))}
    assert found == {
        "n_c1[0]": half["s0"], "n_s[1]": half["s0"], "n_c2[0]": half["s1"], "n_y[0]": half["s3"],
    }  # fmt: skip
    assert _actions(result, "activation") == {"added": ["r0"], "kept": ["r0", "r1", "p"]}
    (added,) = [c for c in result.changes if c.action == "added"]
    assert "the other branch of the residual" in added.reason and added.nodes == ("n_s",)
    assert any("fp16 and fp32 meet" in note for note in result.notes)  # K67, K69: said of the file
    again = fix(_naive(), options=dataclasses.replace(TRT, precision="fp32"))
    assert again.engine is not None and again.before is not None
    assert again.engine.predicted_us <= again.before.predicted_us


def test_weights_that_stay_keep_every_integer_and_scale_bit() -> None:
    model = _naive(scale_type=np.float16)
    arrays = {n: v.const_value.numpy() for n, v in model.graph.initializers.items()}
    result = fix(model, options=TRT)
    for number in "123":
        stored = result.model.graph.initializers[f"w{number}_quantized"].const_value.numpy()
        scale = result.model.graph.initializers[f"w{number}_scale"].const_value.numpy()
        assert scale.tobytes() == arrays[f"t{number}"].tobytes()
        wide = arrays[f"t{number}"].astype(np.float32).reshape(16, 1, 1, 1)
        expected = np.clip(np.rint(arrays[f"w{number}"] / wide), -128, 127).astype(np.int8)
        np.testing.assert_array_equal(stored, expected)
    assert _actions(result, "weight") == {"kept": ["w1", "w2", "w3"]}


def test_one_scale_a_weight_where_the_kernels_want_it_is_said() -> None:
    result = fix(_naive(), options=RTX)
    reasons = {c.reason for c in result.changes if c.kind == "weight"}
    assert reasons == {
        "it had one scale a channel of axis 0, the kernel wants one for the whole weight"
    }
    assert {c.action for c in result.changes if c.kind == "weight"} == {"rescaled"}


def test_outputs_stay_close_to_the_file() -> None:
    x = np.abs(normal(1, 16, 8, 8, scale=1.0))
    before = _run(_naive(), x=x)
    for options in (TRT, RTX, CPU):
        after = _run(fix(_naive(), options=options).model, x=x)
        assert _cosine(before, after) >= 0.999, options.target


@pytest.mark.parametrize(("zero", "scale"), [("uint8 128", 0.021), ("uint8 0", 0.021 * 255 / 127)])
def test_k57_k59_zero_points_are_recentred(zero: str, scale: float) -> None:
    model = _naive(zero=zero)
    if zero == "uint8 128":  # TensorRT-RTX 1.7.1 takes UINT8, but no zero point
        with pytest.raises(TargetError, match="zero point"):
            parse_target("tensorrt-rtx:sm89").compile(model, _profile(model))
    result = fix(model, options=dataclasses.replace(RTX, precision="fp32"))
    assert _scales_at(result.model)["n_c1[0]"] == np.float32(
        0.021 if zero == "uint8 128" else np.float64(np.float32(0.021)) * 255 / 127
    )
    assert scale == pytest.approx(_scales_at(result.model)["n_c1[0]"])
    assert result.engine is not None and (result.before is None) == (zero == "uint8 128")
    recentred = [c.reason for c in result.changes if c.action == "rescaled" and c.tensor == "r0"]
    assert bool(recentred) == (zero == "uint8 0")


def _profile(model: ir.Model):  # type: ignore[no-untyped-def]
    from fuseq.model import profile_for  # noqa: PLC0415

    return profile_for(model, 1)


def test_fp8_becomes_int8_with_the_same_magnitudes_where_the_gpu_lacks_fp8() -> None:
    model, scales = _quantized(conv_net(residual=False), "tensorrt-rtx:sm89", "fp8", "fp32")
    options = QuantizeOptions(target="tensorrt-rtx:sm80", policy="full", precision="fp32", batch=1)
    result = fix(model, options=options)
    assert result.plan.format == "int8"
    assert any("the file is fp8, the result int8" in note for note in result.notes)
    found = _scales_at(result.model)
    for reader, tensor in (("n_c1[0]", "r0"), ("n_c2[0]", "r1")):
        assert found[reader] == np.float32(448 * np.float64(scales[tensor]) / 127)
    assert result.engine is not None


def test_a_half_scale_below_the_normal_values_keeps_its_bits() -> None:
    tiny = np.float16(2e-5)
    model = _naive(scale_type=np.float16)
    model.graph.initializers["s1"].const_value = ir.tensor(np.asarray(tiny))
    result = fix(model, options=TRT)
    assert _scales_at(result.model)["n_c2[0]"] == float(tiny)


def test_scales_follow_the_factor_of_attention_that_the_canonical_form_moves() -> None:
    """Exporters write sqrt(scale) on Q and on K; the canonical form has all of it on Q."""
    text = f"""{HEAD}
    g (float[1, 4, 128, 64] q, float[1, 4, 64, 128] k, float[1, 4, 128, 64] v) => (float[1, 4, 128, 64] y)
    <float root = {{0.25}}, float s = {{0.03125}}, float u = {{0.0078125}}> {{
      qs = Mul(q, root)
      q1 = QuantizeLinear <output_dtype = 17> (qs, s)
      q2 = DequantizeLinear(q1, s)
      ks = Mul(k, root)
      k1 = QuantizeLinear <output_dtype = 17> (ks, s)
      k2 = DequantizeLinear(k1, s)
      a = MatMul(q2, k2)
      p = Softmax(a)
      p1 = QuantizeLinear <output_dtype = 17> (p, u)
      p2 = DequantizeLinear(p1, u)
      v1 = QuantizeLinear <output_dtype = 17> (v, s)
      v2 = DequantizeLinear(v1, s)
      y = MatMul(p2, v2)
    }}"""
    model = named(from_text(text))
    result = fix(model, options=RTX)
    ranges = _scales_at(result.model)
    by_operand = {
        "q": 0.03125 * 0.25,  # q * 1/4 became q * 1/16
        "k": 0.03125 / 0.25,  # k * 1/4 became k
        "p": 0.0078125,
        "v": 0.03125,
    }
    assert ranges == {
        "n_a[0]": by_operand["q"], "n_a[1]": by_operand["k"],
        "n_y[0]": by_operand["p"], "n_y[1]": by_operand["v"],
    }  # fmt: skip
    moved = [c for c in result.changes if "a constant factor that moved" in c.reason]
    assert len(moved) == 2


def test_what_a_tool_kept_in_fp32_stays_fp32() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float16[1, 16, 8, 8] x) => (float16[1, 16, 8, 8] y)
            <int8 z = {{0}}> {{
              q = QuantizeLinear(x, s, z)
              d = DequantizeLinear(q, s, z)
              c = Conv <kernel_shape = [1, 1]> (d, w)
              r = Relu(c)
              f = Cast <to = 1> (r)
              e = Exp(f)
              h = Cast <to = 10> (e)
              y = Conv <kernel_shape = [1, 1]> (h, w)
            }}""",
            w=normal(16, 16, 1, 1).astype(np.float16),
            s=np.asarray(0.02, np.float16),
        )
    )
    result = fix(model, options=TRT)
    (exp,) = [node for node in result.model.graph if node.op_type == "Exp"]
    assert exp.outputs[0].dtype == ir.DataType.FLOAT
    assert {n.outputs[0].dtype for n in result.model.graph if n.op_type == "Conv"} == {
        ir.DataType.FLOAT16
    }


# What has no scale.


def _half_done() -> ir.Model:
    """Only the first convolution is quantized."""
    return named(
        from_text(
            f"""{HEAD}
            net (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s0 = {{0.02}}, int8 z = {{0}}> {{
              r0 = Relu(x)
              q0 = QuantizeLinear(r0, s0, z)
              d0 = DequantizeLinear(q0, s0, z)
              e1 = DequantizeLinear <axis = 0> (w1, t1)
              c1 = Conv <kernel_shape = [1, 1]> (d0, e1)
              r1 = Relu(c1)
              y = Conv <kernel_shape = [1, 1]> (r1, w2)
            }}""",
            w1=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            t1=np.full(16, 0.002, np.float32),
            w2=normal(16, 16, 1, 1),
        )
    )


def test_a_tensor_without_a_scale_stays_float_and_is_listed() -> None:
    result = fix(_half_done(), options=TRT)
    assert set(_scales_at(result.model)) == {"n_c1[0]"}
    (left,) = [c for c in result.changes if c.action == "left float"]
    assert left.tensor == "r1" and "--calib would find one" in left.reason
    (region,) = [r for r in result.plan.regions if r.name == "n_y"]
    assert not region.quantized and "r1 has no scale" in region.reason


def test_calibration_finds_the_scale_that_is_missing_and_keeps_the_others() -> None:
    x = np.random.default_rng(1).normal(0, 1, (4, 16, 8, 8)).astype(np.float32)
    batches = [{"x": x[i : i + 1]} for i in range(4)]
    options = dataclasses.replace(TRT, precision="fp32")
    result = fix(_half_done(), options=options, calib=batches)
    weight = _half_done().graph.initializers["w1"].const_value.numpy().astype(np.float32)
    first = np.maximum(x, 0).reshape(4, 16, 64).astype(np.float64)
    outputs = np.einsum(
        "oi,bip->bop", weight.reshape(16, 16).astype(np.float64) * float(np.float32(0.002)), first
    )
    found = _scales_at(result.model)
    assert found["n_c1[0]"] == np.float32(0.02)
    assert found["n_y[0]"] == pytest.approx(max(outputs.max(), 0) / 127, rel=1e-5)
    (added,) = [c for c in result.changes if c.action == "added" and c.kind == "activation"]
    assert added.reason.endswith("scale calibrated")


def test_a_file_without_quantization_is_given_back() -> None:
    model = conv_net()
    result = fix(model, options=TRT)
    assert signature(result.model) == signature(model)
    assert result.notes == (
        "nothing to fix: the file has no quantization; `fuseq quantize` adds it.",
    )


def test_pays_never_loses_to_the_float_engine() -> None:
    model, _ = _quantized(conv_net(), "tensorrt-rtx:sm89", "int8", "fp16")
    result = fix(model, options=dataclasses.replace(RTX, policy="pays"))
    assert result.engine is not None and result.float_engine is not None
    assert result.engine.predicted_us <= result.float_engine.predicted_us


def test_the_files_own_placement_is_kept_where_its_engine_is_faster() -> None:
    options = dataclasses.replace(TRT, policy="pays", precision="fp32")
    result = fix(_naive(), options=options)
    assert result.engine is not None and result.before is not None
    slow = dataclasses.replace(result.engine, kernels=result.engine.kernels * 4)
    kept = _or_own_placement(
        dataclasses.replace(result, engine=slow),
        _naive(),
        dataclasses.replace(options, format="int8"),
        silent,
    )
    assert _actions(kept) == {"kept": ["r0", "r1", "p", "w1", "w2", "w3"]}
    assert "the file's own placement is kept" in kept.notes[-1]


# Cases.


def test_k3_resize_has_one_scale_on_both_sides() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 16, 16] y)
            <float s = {{0.02}}, float t = {{0.03}}, int8 z = {{0}}, float[4] by = {{1.0, 1.0, 2.0, 2.0}}> {{
              e1 = DequantizeLinear(w1, s)
              c = Conv <kernel_shape = [1, 1]> (x, e1)
              r = Relu(c)
              q0 = QuantizeLinear(r, s, z)
              d0 = DequantizeLinear(q0, s, z)
              u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (d0, , by)
              q1 = QuantizeLinear(u, t, z)
              d1 = DequantizeLinear(q1, t, z)
              e2 = DequantizeLinear(w2, s)
              y = Conv <kernel_shape = [1, 1]> (d1, e2)
            }}""",
            w1=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            w2=np.random.default_rng(1).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
        )
    )
    result = fix(model, options=RTX)
    assert len(set(_scales_at(result.model).values())) == 1
    assert result.engine is not None


def test_k7_the_pair_on_the_convolutions_edge_of_an_add_goes() -> None:
    model = _naive()
    graph = model.graph
    add = next(node for node in graph if node.op_type == "Add")
    scale, zero = graph.initializers["s0"], graph.initializers["z"]
    quantize = ir.node("QuantizeLinear", [add.inputs[0], scale, zero], name="edge_q")
    quantize.outputs[0].name, quantize.outputs[0].type = "edge_q", ir.TensorType(ir.DataType.INT8)
    dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], scale, zero], name="edge_dq")
    dequantize.outputs[0].name, dequantize.outputs[0].type = (
        "edge_dq",
        ir.TensorType(ir.DataType.FLOAT),
    )
    graph.insert_before(add, [quantize, dequantize])
    add.replace_input_with(0, dequantize.outputs[0])
    result = fix(model, options=TRT)
    assert "n_s[0]" not in _scales_at(result.model) and "n_s[1]" in _scales_at(result.model)
    (removed,) = [c for c in result.changes if c.action == "removed"]
    assert removed.tensor == "c2" and "reads it in float" in removed.reason


def test_k15_two_convolutions_of_one_tensor_share_the_larger_scale() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] a, float[1, 16, 8, 8] b)
            <float s1 = {{0.0625}}, float s2 = {{0.125}}, int8 z = {{0}}> {{
              q1 = QuantizeLinear(x, s1, z)
              d1 = DequantizeLinear(q1, s1, z)
              e1 = DequantizeLinear(w, s1)
              a = Conv <kernel_shape = [1, 1]> (d1, e1)
              q2 = QuantizeLinear(x, s2, z)
              d2 = DequantizeLinear(q2, s2, z)
              e2 = DequantizeLinear(w, s2)
              b = Conv <kernel_shape = [1, 1]> (d2, e2)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
        )
    )
    result = fix(model, options=TRT)
    assert _scales_at(result.model) == {"n_a[0]": 0.125, "n_b[0]": 0.125}
    assert sum(node.op_type == "QuantizeLinear" for node in result.model.graph) == 1
    (change,) = [c for c in result.changes if c.tensor == "x" and c.action == "rescaled"]
    assert change.reason == "the largest of the 2 scales that the file has for it"


def test_k13_the_transposed_branch_of_a_concat_is_float_and_the_others_are_not() -> None:
    text = f"""{HEAD}
    g (float[1, 16, 4, 4] x, float[1, 16, 8, 8] z) => (float[1, 16, 8, 8] y)
    <float s = {{0.03125}}, int8 i = {{0}}> {{
      et = DequantizeLinear <axis = 1> (wt, t)
      a = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (x, et)
      qz = QuantizeLinear(z, s, i)
      dz = DequantizeLinear(qz, s, i)
      e1 = DequantizeLinear(w1, s)
      b = Conv <kernel_shape = [1, 1]> (dz, e1)
      e2 = DequantizeLinear(w2, s)
      c = Conv <kernel_shape = [1, 1]> (dz, e2)
      k = Concat <axis = 1> (a, b, c)
      q = QuantizeLinear(k, s, i)
      d = DequantizeLinear(q, s, i)
      e3 = DequantizeLinear(w3, s)
      y = Conv <kernel_shape = [1, 1]> (d, e3)
    }}"""
    rng = np.random.default_rng(0)
    shapes = {
        "wt": (16, 16, 2, 2),
        "w1": (16, 16, 1, 1),
        "w2": (16, 16, 1, 1),
        "w3": (16, 48, 1, 1),
    }
    weights = {n: rng.integers(-127, 128, shape).astype(np.int8) for n, shape in shapes.items()}
    model = named(from_text(text, t=np.full(16, 0.01, np.float32), **weights))
    result = fix(model, options=RTX)
    assert _scales_at(result.model) == dict.fromkeys(("n_b[0]", "n_c[0]", "n_y[0]"), 0.03125)
    (region,) = [r for r in result.plan.regions if r.name == "n_a"]
    assert not region.quantized and "runs ConvTranspose in FP16" in region.reason
    (weight,) = [c for c in result.changes if c.action == "removed"]
    assert weight.tensor == "wt" and weight.reason == region.reason
    assert result.engine is not None


def test_k49_a_transposed_convolution_is_left_float_on_rtx() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 9, 9] y)
            <float s = {{0.02}}, int8 z = {{0}}> {{
              q = QuantizeLinear(x, s, z)
              d = DequantizeLinear(q, s, z)
              v = QuantizeLinear <axis = 1> (w, t, wz)
              e = DequantizeLinear <axis = 1> (v, t, wz)
              y = ConvTranspose <kernel_shape = [2, 2]> (d, e)
            }}""",
            w=normal(16, 16, 2, 2),
            t=np.full(16, 0.003, np.float32),
            wz=np.zeros(16, np.int8),
        )
    )
    result = fix(model, options=RTX)
    assert [node.op_type for node in result.model.graph if "Cast" not in node.op_type] == [
        "ConvTranspose"
    ]
    reasons = {c.reason for c in result.changes if c.action == "removed"}
    assert any("runs ConvTranspose in FP16" in reason for reason in reasons)


def test_k25_depthwise_with_silu_is_left_float_and_builds() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s = {{0.02}}, int8 z = {{0}}> {{
              q = QuantizeLinear(x, s, z)
              d = DequantizeLinear(q, s, z)
              e = DequantizeLinear(w, s)
              c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 16> (d, e)
              b = BatchNormalization(c, one, zero, zero, one)
              g = Sigmoid(b)
              m = Mul(b, g)
              q1 = QuantizeLinear(m, s, z)
              y = DequantizeLinear(q1, s, z)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 1, 3, 3)).astype(np.int8),
            one=np.ones(16, np.float32),
            zero=np.zeros(16, np.float32),
        )
    )
    for options in (RTX, TRT):
        result = fix(model, options=options)
        assert not any("Quantize" in node.op_type for node in result.model.graph)
        assert result.engine is not None


def test_k17_k19_pools_concat_and_silu_add_share_scales() -> None:
    """SPPF: pairs with one scale through MaxPool and Concat, where the reader is quantized."""
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s = {{0.02}}, int8 z = {{0}}> {{
              e = DequantizeLinear(w, s)
              c = Conv <kernel_shape = [1, 1]> (x, e)
              g = Sigmoid(c)
              m = Mul(c, g)
              a = Add(m, x)
              p1 = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (a)
              p2 = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (p1)
              k = Concat <axis = 1> (a, p1, p2)
              q = QuantizeLinear(k, s, z)
              d = DequantizeLinear(q, s, z)
              e2 = DequantizeLinear(w2, s)
              y = Conv <kernel_shape = [1, 1]> (d, e2)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            w2=np.random.default_rng(1).integers(-127, 128, (16, 48, 1, 1)).astype(np.int8),
        )
    )
    batches = [{"x": normal(1, 16, 8, 8, seed=3, scale=0.3)}]
    on_cpu = _scales_at(fix(model, options=CPU, calib=batches).model)
    shared = ("n_p1[0]", "n_p2[0]", "n_k[0]", "n_k[1]", "n_k[2]", "n_y[0]")
    assert {on_cpu[reader] for reader in shared} == {np.float32(0.02)}
    result = fix(model, options=RTX)
    assert _scales_at(result.model) == dict.fromkeys(
        ("n_c[0]", "n_y[0]"), np.float32(np.float16(0.02))
    )
    (added,) = [c for c in result.changes if c.action == "added" and c.kind == "activation"]
    assert added.tensor == "x" and "estimate: taken to stay within the sum" in added.reason
    assert result.engine is not None


def test_k33_a_softmax_without_a_pair_gets_the_known_scale() -> None:
    net = attention_net(length=128, size=64)
    model, _ = _quantized(net, "tensorrt-rtx:sm89", "fp8", "fp16")
    graph = model.graph
    softmax = next(node for node in graph if node.op_type == "Softmax")
    pair = next(iter(softmax.outputs[0].uses())).node
    behind = next(iter(pair.outputs[0].uses())).node
    behind.outputs[0].replace_all_uses_with(softmax.outputs[0])
    graph.remove([behind, pair], safe=True)
    result = fix(model, options=RTX)
    product = next(
        iter(next(n for n in result.model.graph if n.op_type == "Softmax").outputs[0].uses())
    ).node
    assert product.op_type == "QuantizeLinear"
    assert float(product.inputs[1].const_value.numpy()) == np.float32(np.float16(1 / 448))
    (added,) = [c for c in result.changes if c.action == "added"]
    assert "scale known by definition" in added.reason


def test_k53_a_zero_scale_leaves_the_layer_float_and_names_it() -> None:
    model = _naive()
    model.graph.initializers["s1"].const_value = ir.tensor(np.float32(0.0))
    result = fix(model, options=RTX)
    (mended,) = [c for c in result.changes if c.action == "mended"]
    assert mended.tensor == "r1" and "not above 0" in mended.reason
    assert mended.nodes == ("n_q1", "n_d1")
    assert "n_c2[0]" not in _scales_at(result.model)


def test_k65_names_of_the_result_are_unique() -> None:
    model = _naive()
    taken = [value.name for node in fix(model, options=TRT).model.graph for value in node.outputs]
    assert len(set(taken)) == len(taken)


# --keep-placement.


def test_keep_placement_mends_only_what_is_illegal() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s = {{0.02}}, uint8 z = {{0}}, float t = {{0.01}}, uint8 m = {{128}}> {{
              q = QuantizeLinear(x, t, m)
              d = DequantizeLinear(q, t, m)
              e = DequantizeLinear(w, t)
              b = DequantizeLinear(bi, bs)
              c = Conv <kernel_shape = [1, 1]> (d, e, b)
              q1 = QuantizeLinear(c, s, z)
              d1 = DequantizeLinear(q1, s, z)
              v = Sigmoid(d1)
              q2 = QuantizeLinear(v, s, z)
              y = DequantizeLinear(q2, s, z)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            bi=np.arange(16, dtype=np.int32),
            bs=np.full(1, 1e-4, np.float32),
        )
    )
    x = normal(1, 16, 8, 8, scale=1.0)
    before = _run(model, x=x)
    first = fix(model, options=RTX, keep_placement=True).model
    second = fix(first, options=RTX, keep_placement=True)
    assert signature(second.model) == signature(first) and set(_actions(second)) == {"kept"}
    result = fix(model, options=dataclasses.replace(RTX, precision="fp32"), keep_placement=True)
    ops = [node.op_type for node in result.model.graph]
    assert ops.count("QuantizeLinear") == 3 and ops.count("DequantizeLinear") == 4
    assert "Clip" in ops  # the zero point 0 had stood for a Relu
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    assert _actions(result)["removed"] == ["bi"]
    assert sorted(_actions(result)["rescaled"]) == ["c_clipped", "y"]
    assert _actions(result)["kept"] == ["x", "w"]
    assert _cosine(before, _run(result.model, x=x)) > 0.999


def test_keep_placement_on_the_cpu_keeps_zero_points_and_int32_biases() -> None:
    text = f"""{HEAD}
    g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
    <float s = {{0.02}}, uint8 z = {{113}}> {{
      q = QuantizeLinear(x, s, z)
      d = DequantizeLinear(q, s, z)
      e = DequantizeLinear(w, t, wz)
      b = DequantizeLinear(bi, bs)
      c = Conv <kernel_shape = [1, 1]> (d, e, b)
      q1 = QuantizeLinear(c, s, z)
      y = DequantizeLinear(q1, s, z)
    }}"""
    model = named(
        from_text(
            text,
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            t=np.asarray(0.01, np.float32),
            wz=np.asarray(0, np.int8),
            bi=np.arange(16, dtype=np.int32),
            bs=np.asarray(0.02 * 0.01, np.float32),
        )
    )
    result = fix(model, options=CPU, keep_placement=True)
    assert signature(result.model) == signature(model)


def test_the_input_file_is_not_touched_and_nothing_is_half_written(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    save(_naive(), source)
    bytes_before = source.read_bytes()
    with pytest.raises(TargetError):
        fix(
            source,
            tmp_path / "out.onnx",
            options=QuantizeOptions(target="tensorrt-rtx:sm80"),
            fmt="fp8",
        )
    assert source.read_bytes() == bytes_before
    assert [file.name for file in tmp_path.iterdir()] == ["in.onnx"]
    assert load(source).graph.outputs[0].name == "y"
