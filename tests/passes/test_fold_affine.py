from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.passes.fold_affine import fold_affine
from tests.graphs import from_text, normal
from tests.passes.reading import lines, ops, run, value_named

BN = {
    "g": np.array([1.5, -0.5, 2.0, 0.25], np.float32),
    "b": np.array([0.1, -0.2, 0.3, 5.0], np.float32),
    "m": np.array([0.5, -1.0, 0.0, 2.0], np.float32),
    "v": np.array([0.5, 2.0, 1.0, 0.01], np.float32),
}


def _check(
    model: ir.Model, expected_ops: list[str], atol: float = 2e-6, **inputs: np.ndarray
) -> None:
    before = run(model, **inputs)
    fold_affine(model)
    assert ops(model) == expected_ops
    for got, want in zip(run(model, **inputs), before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=atol)


def test_batch_norm_goes_into_a_conv_without_bias_in_float64() -> None:
    weight = normal(4, 3, 3, 3, seed=1)
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3, 5, 5] x) => (float[1, 4, 5, 5] y) {
          c = Conv <pads = [1, 1, 1, 1]> (x, w)
          y = BatchNormalization <epsilon = 0.001> (c, g, b, m, v)
        }""",
        w=weight,
        **BN,
    )
    _check(model, ["Conv"], x=normal(1, 3, 5, 5, seed=2, scale=1))
    scale = BN["g"].astype(np.float64) / np.sqrt(BN["v"].astype(np.float64) + np.float32(0.001))
    conv = model.graph[0]
    folded = conv.inputs[1].const_value.numpy()
    np.testing.assert_array_equal(
        folded, (weight.astype(np.float64) * scale[:, None, None, None]).astype(np.float32)
    )
    np.testing.assert_array_equal(
        conv.inputs[2].const_value.numpy(), (BN["b"] - BN["m"] * scale).astype(np.float32)
    )
    assert conv.outputs[0].name == "y"  # the graph's output keeps its name


@pytest.mark.parametrize("group", [1, 2])
def test_batch_norm_goes_into_a_grouped_conv_transpose_with_bias(group: int) -> None:
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 6, 4, 4] x) => (float[1, 4, 8, 8] y) {{
          c = ConvTranspose <strides = [2, 2], group = {group}> (x, w, bias)
          n = BatchNormalization (c, g, b, m, v)
          y = Relu(n)
        }}""",
        w=normal(6, 4 // group, 2, 2, seed=1),
        bias=normal(4, seed=3),
        **BN,
    )
    _check(model, ["ConvTranspose", "Relu"], x=normal(1, 6, 4, 4, seed=2, scale=1))


@pytest.mark.parametrize(("trans", "shape"), [(1, (4, 5)), (0, (5, 4))])
def test_batch_norm_1d_goes_into_a_gemm_with_alpha_and_beta(
    trans: int, shape: tuple[int, int]
) -> None:
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[3, 5] x) => (float[3, 4] y) {{
          c = Gemm <transB = {trans}, alpha = 0.5, beta = 2.0> (x, w, bias)
          y = BatchNormalization (c, g, b, m, v)
        }}""",
        w=normal(*shape, seed=1),
        bias=normal(4, seed=3),
        **BN,
    )
    _check(model, ["Gemm"], x=normal(3, 5, seed=2, scale=1))
    assert "beta" not in model.graph[0].attributes


@pytest.mark.parametrize("bias", [True, False])
def test_k45_batch_norm_behind_a_linear_layer_is_folded(bias: bool) -> None:
    add = "l = Add(c, lb)" if bias else "l = Identity(c)"
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[3, 5] x) => (float[3, 4] y) {{
          c = MatMul(x, w)
          {add}
          n = BatchNormalization (l, g, b, m, v)
          y = Relu(n)
        }}""",
        w=normal(5, 4, seed=1),
        lb=normal(4, seed=3),
        **BN,
    )
    if not bias:
        identity = model.graph[1]
        identity.outputs[0].replace_all_uses_with(identity.inputs[0])
        model.graph.remove(identity, safe=True)
    _check(model, ["MatMul", "Add", "Relu"], x=normal(3, 5, seed=2, scale=1))


def test_batch_norm_over_the_tokens_of_a_3d_linear_stays() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[2, 4, 5] x) => (float[2, 4, 4] y) {
          c = MatMul(x, w)
          y = BatchNormalization (c, g, b, m, v)
        }""",
        w=normal(5, 4, seed=1),
        **BN,
    )
    _check(model, ["MatMul", "BatchNormalization"], x=normal(2, 4, 5, seed=2))


def test_mul_and_add_per_channel_and_scalar_fold_one_after_the_other() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3, 4, 4] x) => (float[1, 4, 4, 4] y)
        <float half = {0.5}> {
          c = Conv(x, w, bias)
          d = Mul(scale, c)
          e = Add(d, shift)
          h = Div(e, half)
          y = Sub(h, half)
        }""",
        w=normal(4, 3, 1, 1, seed=1),
        bias=normal(4, seed=2),
        scale=normal(1, 4, 1, 1, seed=3, scale=1),
        shift=normal(4, 1, 1, seed=4, scale=1),
    )
    _check(model, ["Conv"], x=normal(1, 3, 4, 4, seed=5, scale=1))


@pytest.mark.parametrize(
    "reader",
    ["d = Mul(c, row)", "d = Div(half, c)", "d = Sub(half, c)", "d = Add(c, c)"],
)
def test_what_is_no_affine_map_per_channel_stays(reader: str) -> None:
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3, 4, 4] x) => (float[1, 4, 4, 4] y)
        <float half = {{0.5}}> {{
          c = Conv(x, w)
          {reader}
          y = Relu(d)
        }}""",
        w=normal(4, 3, 1, 1, seed=1),
        row=normal(4, seed=2),  # varies along the last axis, which is not the channel axis
    )
    before = lines(model)
    fold_affine(model)
    assert lines(model) == before


def test_a_conv_that_others_read_too_is_not_touched() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3, 4, 4] x) => (float[1, 4, 4, 4] y, float[1, 4, 4, 4] z) {
          c = Conv(x, w)
          y = BatchNormalization(c, g, b, m, v)
          z = Relu(c)
        }""",
        w=normal(4, 3, 1, 1, seed=1),
        **BN,
    )
    _check(model, ["Conv", "BatchNormalization", "Relu"], x=normal(1, 3, 4, 4))


def test_a_shared_weight_is_copied_for_the_layer_that_changes() -> None:
    weight = normal(4, 3, 1, 1, seed=1)
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3, 4, 4] x) => (float[1, 4, 4, 4] y, float[1, 4, 4, 4] z) {
          c = Conv(x, w)
          y = BatchNormalization(c, g, b, m, v)
          z = Conv(x, w)
        }""",
        w=weight,
        **BN,
    )
    _check(model, ["Conv", "Conv"], x=normal(1, 3, 4, 4))
    np.testing.assert_array_equal(value_named(model, "w").const_value.numpy(), weight)


def test_a_matmul_keeps_the_layer_scale_behind_it() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[2, 7, 5] x) => (float[2, 7, 4] y) {
          c = MatMul(x, w)
          d = Add(c, bias)
          y = Mul(d, gamma)
        }""",
        w=normal(5, 4),
        bias=normal(4),
        gamma=np.full(4, 1e-6, np.float32),
    )
    _check(model, ["MatMul", "Add", "Mul"], x=normal(2, 7, 5))


@pytest.mark.parametrize("stored", [True, False])
def test_k43_behind_a_quantized_weight_the_scales_are_multiplied(stored: bool) -> None:
    integers = np.random.default_rng(1).integers(-127, 128, (4, 3, 1, 1)).astype(np.int8)
    scale = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    floats = integers * scale[:, None, None, None]
    quantize = "" if stored else "q = QuantizeLinear <axis = 0> (w, s, z)"
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3, 4, 4] x) => (float[1, 4, 4, 4] y) {{
          {quantize}
          d = DequantizeLinear <axis = 0> (q, s, z)
          c = Conv(x, d)
          n = BatchNormalization(c, g, b, m, v)
          y = Relu(n)
        }}""",
        s=scale,
        z=np.zeros(4, np.int8),
        **({"q": integers} if stored else {"w": floats}),
        **BN,
    )
    kept = ["DequantizeLinear", "Conv", "Relu"]
    _check(model, kept if stored else ["QuantizeLinear", *kept], x=normal(1, 3, 4, 4, scale=1))
    dequantize = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    gain = np.abs(BN["g"] / np.sqrt(BN["v"] + 1e-5))
    np.testing.assert_allclose(dequantize.inputs[1].const_value.numpy(), scale * gain, rtol=1e-6)


def test_a_per_tensor_weight_scale_becomes_one_per_channel() -> None:
    integers = np.random.default_rng(1).integers(-127, 128, (4, 3, 1, 1)).astype(np.int8)
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3, 4, 4] x) => (float[1, 4, 4, 4] y) <float s = {0.02}> {
          d = DequantizeLinear(q, s)
          c = Conv(x, d)
          y = BatchNormalization(c, g, b, m, v)
        }""",
        q=integers,
        **BN,
    )
    _check(model, ["DequantizeLinear", "Conv"], x=normal(1, 3, 4, 4, scale=1))
    assert model.graph[0].inputs[1].const_value.numpy().shape == (4,)
    assert model.graph[0].attributes["axis"].as_int() == 0


def test_minus_128_has_no_opposite_so_a_negative_gamma_is_refused() -> None:
    integers = np.full((4, 3, 1, 1), -128, np.int8)
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3, 4, 4] x) => (float[1, 4, 4, 4] y) <float s = {0.02}> {
          d = DequantizeLinear(q, s)
          c = Conv(x, d)
          y = BatchNormalization(c, g, b, m, v)
        }""",
        q=integers,
        **BN,
    )
    _check(model, ["DequantizeLinear", "Conv", "BatchNormalization"], x=normal(1, 3, 4, 4))
