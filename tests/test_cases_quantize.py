"""What users of this field met (public reports), where it touches quantizing and typing.

Each test is one kind of report with its right outcome, or what the compiled engine says instead.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import fuseq
from fuseq.errors import CalibrationError
from fuseq.placement.plan import Plan
from fuseq.quantizing import Quantized
from fuseq.targets.base import KernelType
from tests.graphs import attention_net, conv_net, from_text, named, normal


def _quantize(
    model: ir.Model, fmt: str = "int8", target: str = "tensorrt-rtx:sm89", **options: object
) -> Quantized:
    data = {
        value.name or "": normal(*(d if isinstance(d, int) else 1 for d in value.shape), scale=1.0)
        for value in model.graph.inputs
        if value.shape is not None
    }
    chosen = fuseq.QuantizeOptions(
        format=fmt, target=target, **{"policy": "full", "batch": 1, **options}
    )  # type: ignore[arg-type]
    return fuseq.quantize(model, calib=[data], options=chosen)


def _pairs(plan: Plan) -> set[tuple[str, str]]:
    return {
        (entry.tensor, use.node)
        for entry in plan.tensors
        if entry.kind == "activation"
        for use in entry.uses
    }


def _count(result: Quantized, op_type: str) -> int:
    return sum(node.op_type == op_type for node in result.model.graph)


@pytest.mark.parametrize("target", ["tensorrt-rtx:sm89", "tensorrt:sm80"])
def test_k1_k7_the_convs_edge_of_a_residual_never_gets_a_pair(target: str) -> None:
    pairs = _pairs(_quantize(conv_net(channels=64), "int8", target).plan)
    assert ("c2", "n_s") not in pairs
    # Full TensorRT fuses the Add when the identity branch is quantized; TensorRT-RTX fuses it with
    # the FP16 branch as it is, and a pair there would run as a kernel of its own.
    assert (("r0", "n_s") in pairs) == (target == "tensorrt:sm80")


def test_k9_a_branch_that_begins_with_a_pool_is_the_identity_branch() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 32, 8, 8] x) => (float[1, 32, 8, 8] y) {
              r = Relu(x)
              c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r, w)
              p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r)
              y = Add(c, p)
            }""",
            w=normal(32, 32, 3, 3),
        )
    )
    pairs = _pairs(_quantize(model, "int8", "tensorrt:sm80").plan)
    assert ("p", "n_y") in pairs
    assert ("c", "n_y") not in pairs


def test_k3_resize_between_convs_has_one_scale_on_both_sides() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 32, 8, 8] x) => (float[1, 32, 16, 16] y, float[1, 32, 8, 8] z)
            <float[4] scales = {1, 1, 2, 2}>
            {
              c = Conv <kernel_shape = [1, 1]> (x, w1)
              r = Relu(c)
              u = Resize <mode = "nearest"> (r, , scales)
              y = Conv <kernel_shape = [1, 1]> (u, w2)
              z = Conv <kernel_shape = [1, 1]> (r, w3)
            }""",
            w1=normal(32, 32, 1, 1, seed=1),
            w2=normal(32, 32, 1, 1, seed=2),
            w3=normal(32, 32, 1, 1, seed=3),
        )
    )
    result = _quantize(model)
    groups = {e.tensor: e.group for e in result.plan.tensors if e.kind == "activation"}
    assert groups["u"] == groups["r"] == "r"
    assert result.engine is not None


def test_k17_pools_and_concat_share_one_scale() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {
              c = Conv <kernel_shape = [1, 1]> (x, w1)
              s = Sigmoid(c)
              m = Mul(c, s)
              p1 = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (m)
              p2 = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (p1)
              k = Concat <axis = 1> (m, p1, p2)
              y = Conv <kernel_shape = [1, 1]> (k, w2)
            }""",
            w1=normal(16, 16, 1, 1, seed=1),
            w2=normal(16, 48, 1, 1, seed=2),
        )
    )
    result = _quantize(model, "int8", "tensorrt:sm80")
    groups = {e.group for e in result.plan.tensors if e.kind == "activation" and e.tensor != "x"}
    assert len(groups) == 1


def test_k21_k29_the_engine_is_never_slower_than_float() -> None:
    """Small convolutions whose pairs cost more than they save stay float, with the reason."""
    model = conv_net(channels=16)
    result = _quantize(model, policy="pays")
    assert result.engine is not None and result.float_engine is not None
    assert result.engine.predicted_us <= result.float_engine.predicted_us
    for region in result.plan.regions:
        if not region.quantized:
            assert region.reason.startswith("float: ")


def test_k25_depthwise_with_batch_norm_and_silu_stays_fp16_and_builds() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 32, 8, 8] x) => (float[1, 32, 8, 8] y) {
              c = Conv <group = 32, kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
              b = BatchNormalization (c, gamma, beta, mean, var)
              s = Sigmoid(b)
              y = Mul(b, s)
            }""",
            w=normal(32, 1, 3, 3),
            gamma=np.ones(32, np.float32),
            beta=normal(32),
            mean=normal(32),
            var=np.ones(32, np.float32),
        )
    )
    result = _quantize(model)
    assert _count(result, "BatchNormalization") == 0
    assert _count(result, "QuantizeLinear") == 0
    assert result.engine is not None
    (conv,) = [k for k in result.engine.kernels if k.type is KernelType.CONVOLUTION]
    assert conv.compute_dtype == "fp16"


def test_k31_an_fp8_stem_of_three_channels_stays_fp16() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 3, 32, 32] x) => (float[1, 64, 16, 16] y) {
              c = Conv <kernel_shape = [7, 7], strides = [2, 2], pads = [3, 3, 3, 3]> (x, w1)
              r = Relu(c)
              y = Conv <kernel_shape = [1, 1]> (r, w2)
            }""",
            w1=normal(64, 3, 7, 7),
            w2=normal(64, 64, 1, 1),
        )
    )
    result = _quantize(model, "fp8")
    decisions = {r.name: (r.quantized, r.reason) for r in result.plan.regions}
    assert decisions["n_c"] == (
        False,
        "float: no fp8 kernel takes 3 input channels; 4 are the least",
    )
    assert decisions["n_y"][0]
    assert result.engine is not None
    dtypes = [k.compute_dtype for k in result.engine.kernels if k.compute_dtype]
    assert dtypes == ["fp16", "fp8"]


def test_k33_the_softmax_output_has_the_pair_of_one_448th() -> None:
    result = _quantize(attention_net(length=64), "fp8")
    scale = float(result.scales["p"].scale)
    assert scale == float(np.float16(1 / 448))
    assert result.engine is not None
    (attention,) = [k for k in result.engine.kernels if k.type is KernelType.ATTENTION]
    assert attention.compute_dtype == "fp8"


def test_k35_int8_attention_whose_fusion_breaks_stays_in_the_fused_fp16_kernel() -> None:
    """With Q, K and V quantized apart TensorRT-RTX does not fuse INT8 attention of 257 keys."""
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 8, 257, 64] q, float[1, 8, 257, 64] k, float[1, 8, 257, 64] v)
              => (float[1, 8, 257, 64] y) <float scale = {0.125}>
            {
              qs = Mul(q, scale)
              kt = Transpose <perm = [0, 1, 3, 2]> (k)
              s = MatMul(qs, kt)
              p = Softmax <axis = -1> (s)
              y = MatMul(p, v)
            }"""
        )
    )
    result = _quantize(model)
    assert result.engine is not None
    (attention,) = [k for k in result.engine.kernels if k.type is KernelType.ATTENTION]
    assert attention.compute_dtype == "fp16"
    (region,) = result.plan.regions
    assert region.reason == (
        "float: the compiler fuses this attention in float and not in int8 (compiled)"
    )


def test_k35_int8_attention_that_fuses_is_one_int8_kernel() -> None:
    result = _quantize(attention_net(length=64), "int8")
    assert result.engine is not None
    (attention,) = [k for k in result.engine.kernels if k.type is KernelType.ATTENTION]
    assert attention.compute_dtype == "int8"


def test_k43_batch_norm_is_folded_and_the_weight_rescaled() -> None:
    gamma = np.linspace(0.5, 2, 32).astype(np.float32)
    weights = {
        "w": normal(32, 32, 1, 1),
        "gamma": gamma,
        "beta": normal(32),
        "mean": normal(32),
        "var": np.full(32, 4.0, np.float32),
    }
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 32, 8, 8] x) => (float[1, 32, 8, 8] y) {
              c = Conv <kernel_shape = [1, 1]> (x, w)
              b = BatchNormalization <epsilon = 0.0> (c, gamma, beta, mean, var)
              y = Relu(b)
            }""",
            **weights,
        )
    )
    result = _quantize(model, precision="fp32")
    assert _count(result, "BatchNormalization") == 0
    (entry,) = [e for e in result.plan.tensors if e.kind == "weight"]
    folded = weights["w"] * (gamma / 2.0)[:, None, None, None]
    scale = result.scales[entry.group].scale
    amax = np.abs(folded).max() if entry.axis is None else np.abs(folded).max(axis=(1, 2, 3))
    np.testing.assert_allclose(scale, amax / 127, rtol=1e-6)


def test_k47_a_transposed_convolution_stays_float_on_tensorrt_rtx() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 16, 8, 8] x) => (float[1, 16, 16, 16] y) {
              y = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (x, w)
            }""",
            w=normal(16, 16, 2, 2),
        )
    )
    result = _quantize(model)
    assert _count(result, "DequantizeLinear") == 0
    assert "runs ConvTranspose in FP16" in result.plan.regions[0].reason


def test_k53_an_activation_that_is_always_zero_stays_float_and_is_named() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {
              c = Conv <kernel_shape = [1, 1]> (x, w1, b1)
              r = Relu(c)
              y = Conv <kernel_shape = [1, 1]> (r, w2)
            }""",
            w1=normal(16, 16, 1, 1),
            b1=np.full(16, -100.0, np.float32),
            w2=normal(16, 16, 1, 1),
        )
    )
    result = _quantize(model)
    reasons = {r.name: r.reason for r in result.plan.regions}
    assert reasons["n_y"] == "float: r is always 0 in calibration"
    assert any("r" in note and "0" in note for note in result.notes)
    assert all(np.all(scale.scale > 0) for scale in result.scales.values())


def test_k55_an_input_of_zeros_is_refused() -> None:
    options = fuseq.QuantizeOptions(policy="full", batch=1)
    with pytest.raises(CalibrationError, match="x"):
        fuseq.quantize(
            conv_net(), calib=[{"x": np.zeros((1, 16, 8, 8), np.float32)}], options=options
        )


@pytest.mark.parametrize("fmt", ["int8", "fp8"])
def test_k67_k69_scales_have_the_type_of_the_tensor_beside_them(fmt: str) -> None:
    model = _quantize(conv_net(channels=32), fmt).model
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            assert node.inputs[0].dtype == node.inputs[1].dtype == ir.DataType.FLOAT16  # type: ignore[union-attr]
        if node.op_type == "DequantizeLinear":
            assert node.inputs[1].dtype == node.outputs[0].dtype == ir.DataType.FLOAT16  # type: ignore[union-attr]


def test_k73_an_opset_11_file_gets_per_channel_scales_in_a_newer_opset() -> None:
    weight = normal(16, 16, 1, 1)
    weight[:8] /= 1000.0  # one scale for all would lose these channels
    model = named(
        from_text(
            """<ir_version: 6, opset_import: ["" : 11]>
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {
              y = Conv <kernel_shape = [1, 1]> (x, w)
            }""",
            w=weight,
        )
    )
    result = _quantize(model)
    (entry,) = [e for e in result.plan.tensors if e.kind == "weight"]
    assert entry.axis == 0
    assert result.model.opset_imports[""] >= 13
    assert result.engine is not None


def test_k83_excluding_what_is_not_there_never_crashes() -> None:
    result = _quantize(conv_net(), exclude=("*LayerNorm*", "n_r1"))
    assert "--exclude *LayerNorm* matched no layer with weights." in result.plan.notes


def test_k91_two_convs_that_read_one_concat_work_without_tricks() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 8, 8, 8] a, float[1, 8, 8, 8] b) => (float[1, 8, 8, 8] y, float[1, 8, 8, 8] z)
            {
              k = Concat <axis = 1> (a, b)
              y = Conv <kernel_shape = [1, 1]> (k, w1, bias)
              z = Conv <kernel_shape = [1, 1]> (k, w2, bias)
            }""",
            w1=normal(8, 16, 1, 1, seed=1),
            w2=normal(8, 16, 1, 1, seed=2),
            bias=normal(8),
        )
    )
    result = _quantize(model)
    assert _count(result, "QuantizeLinear") == 1
    assert {r.quantized for r in result.plan.regions} == {True}


def test_weights_are_stored_low_precision_behind_dequantize_alone() -> None:
    for fmt, dtype in (("int8", ir.DataType.INT8), ("fp8", ir.DataType.FLOAT8E4M3FN)):
        result = _quantize(conv_net(channels=32), fmt)
        stored = [v for v in result.model.graph.initializers.values() if v.dtype == dtype]
        assert len([v for v in stored if v.const_value is not None and v.const_value.size > 1]) == 3
        for node in result.model.graph:
            if node.op_type == "QuantizeLinear":
                assert node.inputs[0] is not None and not node.inputs[0].is_initializer()


def test_quantizing_changes_nothing_of_the_model_that_was_given() -> None:
    model = conv_net(channels=32)
    before = ir.to_proto(model).SerializeToString()
    _quantize(model)
    assert ir.to_proto(model).SerializeToString() == before
    assert {value.dtype for node in model.graph for value in node.outputs} == {ir.DataType.FLOAT}
