"""fix: scales bit-equal, the same graph after strip and apply, nothing the second time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.errors import TargetError
from fuseq.fixing import _or_own_placement, fix
from fuseq.model import load
from fuseq.options import QuantizeOptions
from fuseq.planning import silent
from fuseq.targets import parse_target
from tests.graphs import attention_net, conv_net, from_text, named, normal
from tests.quantized_nets import (
    CPU,
    HEAD,
    RTX,
    TRT,
    actions,
    cosine,
    half_done,
    naive_block,
    quantized_by_fuseq,
    run_as_written,
    scales_at,
)
from tests.same_graph import signature

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
    model, _ = quantized_by_fuseq(float_model, target, fmt, precision, seed)
    options = QuantizeOptions(target=target, precision=precision, batch=1)
    result = fix(model, options=options, fmt=fmt, keep_placement=True)  # type: ignore[arg-type]
    assert signature(result.model) == signature(model)
    assert set(actions(result)) == {"kept"}


@pytest.mark.parametrize("fmt", ["int8", "fp8"])
@pytest.mark.parametrize("net", ["conv", "attention"])
def test_a_model_of_fuseq_comes_out_as_it_went_in(net: str, fmt: str) -> None:
    float_model = conv_net() if net == "conv" else attention_net(length=128, size=64)
    model, _ = quantized_by_fuseq(float_model, RTX.target, fmt, "fp16")
    result = fix(model, options=RTX)
    assert signature(result.model) == signature(model)
    assert set(actions(result)) == {"kept"}


@pytest.mark.parametrize("options", [TRT, RTX, CPU], ids=lambda o: o.target)
def test_a_second_fix_changes_nothing(options: QuantizeOptions, tmp_path: Path) -> None:
    first = fix(naive_block(), tmp_path / "first.onnx", options=options)
    second = fix(tmp_path / "first.onnx", tmp_path / "second.onnx", options=options)
    assert signature(second.model) == signature(first.model)
    assert set(actions(second)) <= {"kept", "left float"}
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()


# Scales.


def test_k1_the_identity_branch_and_the_pool_get_the_scales_that_their_tensors_have() -> None:
    result = fix(naive_block(scale_type=np.float16), options=TRT)
    found = scales_at(result.model)
    half = {name: float(np.float16(s)) for name, s in (("s0", 0.021), ("s1", 0.013), ("s3", 0.017))}
    assert found == {
        "n_c1[0]": half["s0"], "n_s[1]": half["s0"], "n_c2[0]": half["s1"], "n_y[0]": half["s3"],
    }  # fmt: skip
    assert actions(result, "activation") == {"added": ["r0"], "kept": ["r0", "r1", "p"]}
    (added,) = [c for c in result.changes if c.action == "added"]
    assert "the other branch of the residual" in added.reason and added.nodes == ("n_s",)
    assert any("fp16 and fp32 meet" in note for note in result.notes)  # K67, K69: said of the file
    again = fix(naive_block(), options=dataclasses.replace(TRT, precision="fp32"))
    assert again.engine is not None and again.before is not None
    assert again.engine.predicted_us <= again.before.predicted_us


def test_weights_that_stay_keep_every_integer_and_scale_bit() -> None:
    model = naive_block(scale_type=np.float16)
    arrays = {n: v.const_value.numpy() for n, v in model.graph.initializers.items()}
    result = fix(model, options=TRT)
    for number in "123":
        stored = result.model.graph.initializers[f"w{number}_quantized"].const_value.numpy()
        scale = result.model.graph.initializers[f"w{number}_scale"].const_value.numpy()
        assert scale.tobytes() == arrays[f"t{number}"].tobytes()
        wide = arrays[f"t{number}"].astype(np.float32).reshape(16, 1, 1, 1)
        expected = np.clip(np.rint(arrays[f"w{number}"] / wide), -128, 127).astype(np.int8)
        np.testing.assert_array_equal(stored, expected)
    assert actions(result, "weight") == {"kept": ["w1", "w2", "w3"]}


def test_outputs_stay_close_to_the_file() -> None:
    x = np.abs(normal(1, 16, 8, 8, scale=1.0))
    before = run_as_written(naive_block(), x=x)
    for options in (TRT, RTX, CPU):
        after = run_as_written(fix(naive_block(), options=options).model, x=x)
        assert cosine(before, after) >= 0.999, options.target


@pytest.mark.parametrize(("zero", "scale"), [("uint8 128", 0.021), ("uint8 0", 0.021 * 255 / 127)])
def test_k57_k59_zero_points_are_recentred(zero: str, scale: float) -> None:
    model = naive_block(zero=zero)
    if zero == "uint8 128":  # TensorRT-RTX 1.7.1 takes UINT8, but no zero point
        with pytest.raises(TargetError, match="zero point"):
            parse_target("tensorrt-rtx:sm89").compile(model, _profile(model))
    result = fix(model, options=dataclasses.replace(RTX, precision="fp32"))
    assert scales_at(result.model)["n_c1[0]"] == np.float32(
        0.021 if zero == "uint8 128" else np.float64(np.float32(0.021)) * 255 / 127
    )
    assert scale == pytest.approx(scales_at(result.model)["n_c1[0]"])
    assert result.engine is not None and (result.before is None) == (zero == "uint8 128")
    recentred = [c.reason for c in result.changes if c.action == "rescaled" and c.tensor == "r0"]
    assert bool(recentred) == (zero == "uint8 0")


def _profile(model: ir.Model):  # type: ignore[no-untyped-def]
    from fuseq.model import profile_for  # noqa: PLC0415

    return profile_for(model, 1)


def test_fp8_becomes_int8_with_the_same_magnitudes_where_the_gpu_lacks_fp8() -> None:
    model, scales = quantized_by_fuseq(conv_net(residual=False), "tensorrt-rtx:sm89", "fp8", "fp32")
    options = QuantizeOptions(target="tensorrt-rtx:sm80", policy="full", precision="fp32", batch=1)
    result = fix(model, options=options)
    assert result.plan.format == "int8"
    assert any("the file is fp8, the result int8" in note for note in result.notes)
    found = scales_at(result.model)
    for reader, tensor in (("n_c1[0]", "r0"), ("n_c2[0]", "r1")):
        assert found[reader] == np.float32(448 * np.float64(scales[tensor]) / 127)
    assert result.engine is not None


def test_fp8_scales_that_leave_most_of_the_range_unused_do_not_cost_integers_their_bits() -> None:
    """ModelOpt's ONNX quantizer brings the largest values to 36 of FP8's 448; its weights show it."""
    file = Path(__file__).parent / "data" / "fix_corpus" / "modelopt-onnx" / "vit-fp8.onnx"
    options = QuantizeOptions(target="tensorrt:sm80", policy="full", batch=8)
    result = fix(file, options=options)
    scales = [
        (change.before, change.after)
        for change in result.changes
        if change.kind == "activation" and change.action == "rescaled"
    ]
    assert scales
    for before, after in scales:
        assert after == pytest.approx(before * 36 / 127, rel=2e-3)
    image = np.random.default_rng(5).normal(0, 0.8, (8, 3, 32, 32)).astype(np.float32)
    assert cosine(run_as_written(load(file), x=image), run_as_written(result.model, x=image)) > 0.99


def test_a_half_scale_below_the_normal_values_keeps_its_bits() -> None:
    tiny = np.float16(2e-5)
    model = naive_block(scale_type=np.float16)
    model.graph.initializers["s1"].const_value = ir.tensor(np.asarray(tiny))
    result = fix(model, options=TRT)
    assert scales_at(result.model)["n_c2[0]"] == float(tiny)


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
    ranges = scales_at(result.model)
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


def test_a_tensor_without_a_scale_stays_float_and_is_listed() -> None:
    result = fix(half_done(), options=TRT)
    assert set(scales_at(result.model)) == {"n_c1[0]"}
    (left,) = [c for c in result.changes if c.action == "left float"]
    assert left.tensor == "r1" and "--calib would find one" in left.reason
    (region,) = [r for r in result.plan.regions if r.name == "n_y"]
    assert not region.quantized and "r1 has no scale" in region.reason


def test_calibration_finds_the_scale_that_is_missing_and_keeps_the_others() -> None:
    x = np.random.default_rng(1).normal(0, 1, (4, 16, 8, 8)).astype(np.float32)
    batches = [{"x": x[i : i + 1]} for i in range(4)]
    options = dataclasses.replace(TRT, precision="fp32")
    result = fix(half_done(), options=options, calib=batches)
    weight = half_done().graph.initializers["w1"].const_value.numpy().astype(np.float32)
    first = np.maximum(x, 0).reshape(4, 16, 64).astype(np.float64)
    outputs = np.einsum(
        "oi,bip->bop", weight.reshape(16, 16).astype(np.float64) * float(np.float32(0.002)), first
    )
    found = scales_at(result.model)
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
    model, _ = quantized_by_fuseq(conv_net(), "tensorrt-rtx:sm89", "int8", "fp16")
    result = fix(model, options=dataclasses.replace(RTX, policy="pays"))
    assert result.engine is not None and result.float_engine is not None
    assert result.engine.predicted_us <= result.float_engine.predicted_us


def test_the_files_own_placement_is_kept_where_its_engine_is_faster() -> None:
    options = dataclasses.replace(TRT, policy="pays", precision="fp32")
    result = fix(naive_block(), options=options)
    assert result.engine is not None and result.before is not None
    slow = dataclasses.replace(result.engine, kernels=result.engine.kernels * 4)
    kept = _or_own_placement(
        dataclasses.replace(result, engine=slow),
        naive_block(),
        dataclasses.replace(options, format="int8"),
        silent,
    )
    assert actions(kept) == {"kept": ["r0", "r1", "p", "w1", "w2", "w3"]}
    assert "the file's own placement is kept" in kept.notes[-1]


def test_the_files_own_graph_without_pairs_where_that_is_fastest() -> None:
    """An attention graph whose canonical form has more kernels, and whose pairs do not pay either."""
    options = dataclasses.replace(TRT, policy="pays", format="int8")
    result = fix(naive_block(), options=options)
    assert result.engine is not None and result.before is not None
    kernel = dataclasses.replace(result.engine.kernels[0], predicted_us=1e9)
    slow = dataclasses.replace(result.engine, kernels=(kernel,))
    model = named(half_done())  # its pair costs more than it saves
    before = parse_target(options.target).compile(model, _profile(model))
    kept = _or_own_placement(
        dataclasses.replace(result, engine=slow, before=before), model, options, silent
    )
    assert kept.engine is kept.float_engine and kept.plan.tensors == ()
    assert kept.engine is not None and kept.engine.predicted_us < before.predicted_us
    assert not [n for n in kept.model.graph if n.op_type.endswith("QuantizeLinear")]
    assert set(actions(kept)) == {"removed"} and "predicted fastest" in kept.notes[-1]
