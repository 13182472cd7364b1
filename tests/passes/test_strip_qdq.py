"""Stripping: bit-exact weights, kept scales, restored saturation."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.calibration.rounding import quantize_array
from fuseq.formats import FP8, INT8, UINT8, Format
from fuseq.passes.found_scales import FoundScale
from fuseq.passes.non_negative import never_negative
from fuseq.passes.quantizers import Quantizer, dequantized_values, quantized_values
from fuseq.passes.strip_qdq import strip_qdq
from fuseq.placement.plan import Use
from tests.graphs import from_text, named, normal
from tests.passes.stripping import F8, HEAD, array_of, operators, run_as_written, strip_checked

# Weights come back bit for bit.


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([np.int8, np.uint8, F8]),
    st.floats(2.0**-30, 2.0**20),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, 0, 1]),
)
def test_folded_weights_quantize_to_the_same_integers(
    kind: type, scale: float, zero: int, seed: int, axis: int | None
) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (4, 5), dtype=np.uint8)
    if kind is F8:
        codes[(codes & 0x7F) == 0x7F] = 0  # NaN has no integer to come back to
    stored = codes.view(kind)
    fmt: Format = {np.int8: INT8, np.uint8: UINT8, F8: FP8}[kind]
    shape = () if axis is None else (stored.shape[axis],)
    scales = np.asarray(scale * rng.uniform(0.5, 2, shape), np.float32)
    zeros = np.full(shape, zero if kind is np.uint8 else 0, np.int64)
    by = Quantizer(scales, zeros, fmt.dtype, axis)
    folded = dequantized_values(stored, by)
    again = quantize_array(folded, scales, zeros.astype(np.int32), fmt, axis)
    assert folded.dtype == np.float32
    np.testing.assert_array_equal(again.view(np.uint8), codes)
    np.testing.assert_array_equal(quantized_values(folded, by).view(np.uint8), codes)


def _weight_net(q_on_weight: bool, op: str, axis: int, shape: tuple[int, ...]) -> ir.Model:
    """x -> Q/DQ -> op(weight behind Q -> DQ, or DQ alone)."""
    weight = "wq = QuantizeLinear <axis = {0}> (w, ws, wz)" if q_on_weight else ""
    stored = "wq" if q_on_weight else "wi"
    text = f"""{HEAD}
    g (float[2, 8, 6, 6] x) => (float[a, b, c, d] y)
    <float s = {{0.05}}, int8 z = {{0}}> {{
      q = QuantizeLinear(x, s, z)
      d = DequantizeLinear(q, s, z)
      {weight.format(axis)}
      wd = DequantizeLinear <axis = {axis}> ({stored}, ws, wz)
      y = {op}(d, wd)
    }}"""
    rng = np.random.default_rng(3)
    channels = shape[axis]
    arrays = {"ws": rng.uniform(0.001, 0.01, channels).astype(np.float32)}
    arrays["wz"] = np.zeros(channels, np.int8)
    if q_on_weight:
        arrays["w"] = normal(*shape)
    else:
        arrays["wi"] = rng.integers(-128, 128, shape).astype(np.int8)
    return named(from_text(text, **arrays))


@pytest.mark.parametrize("q_on_weight", [True, False])
@pytest.mark.parametrize(
    ("op", "axis", "shape"),
    [
        ("Conv <kernel_shape = [3, 3]>", 0, (4, 8, 3, 3)),
        ("ConvTranspose <kernel_shape = [2, 2]>", 1, (8, 4, 2, 2)),  # K49: any axis folds
        ("MatMul", 1, (6, 5)),
    ],
)
def test_weights_of_any_axis_fold(
    q_on_weight: bool, op: str, axis: int, shape: tuple[int, ...]
) -> None:
    model = _weight_net(q_on_weight, op, axis, shape)
    x = normal(2, 8, 6, 6, seed=5, scale=1.0)
    before = run_as_written(
        model, x=np.clip(np.rint(x / 0.05), -128, 127).astype(np.float32) * np.float32(0.05)
    )
    scales = array_of(model, "ws")
    _, found = strip_checked(model)
    assert operators(model) == [op.split(maxsplit=1)[0]]
    name = "w" if q_on_weight else "wi"
    by = found["weight", name].by
    assert by.axis == axis and by.scale.tobytes() == scales.tobytes()
    assert found["weight", name].uses == (Use("n_y", 1),)
    assert found["activation", "x"].by.scale == np.float32(0.05)
    quantized_x = np.clip(np.rint(x / 0.05), -128, 127).astype(np.float32) * np.float32(0.05)
    np.testing.assert_array_equal(run_as_written(model, x=quantized_x), before)


def test_k39_a_transpose_behind_the_weight_folds_and_the_axis_follows() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[2, 8] x) => (float[2, 4] y) {{
              q = QuantizeLinear <axis = 0> (w, ws, wz)
              d = DequantizeLinear <axis = 0> (q, ws, wz)
              t = Transpose <perm = [1, 0]> (d)
              y = MatMul(x, t)
            }}""",
            w=normal(4, 8),
            ws=np.asarray([0.001, 0.002, 0.004, 0.003], np.float32),
            wz=np.zeros(4, np.int8),
        )
    )
    x = normal(2, 8, seed=1)
    before = run_as_written(model, x=x)
    _, found = strip_checked(model)
    assert operators(model) == ["MatMul"]
    (weight,) = [s for s in found.values() if s.kind == "weight"]
    assert weight.by.axis == 1 and weight.by.scale.tolist() == pytest.approx(
        [0.001, 0.002, 0.004, 0.003]
    )
    np.testing.assert_array_equal(run_as_written(model, x=x), before)


def test_the_channel_axis_is_found_again_behind_a_reshape() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 4, 5, 5] x) => (float[1, 3, 6, 6] y)
            <int64[4] to = {{4, 3, 2, 2}}> {{
              d = DequantizeLinear <axis = 1> (w, ws)
              r = Reshape(d, to)
              y = ConvTranspose <kernel_shape = [2, 2]> (x, r)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (4, 3, 4)).astype(np.int8),
            ws=np.asarray([0.001, 0.002, 0.003], np.float32),
        )
    )
    x = normal(1, 4, 5, 5)
    before = run_as_written(model, x=x)
    _, found = strip_checked(model)
    assert operators(model) == ["ConvTranspose"] and found["weight", "w"].by.axis == 1
    np.testing.assert_array_equal(run_as_written(model, x=x), before)


def test_k73_a_scale_a_channel_below_opset_13_is_one_of_the_output_channels() -> None:
    head = HEAD.replace("21", "11", 1)
    text = f"""{head}
    g (float[1, 4, 3, 3] x) => (float[1, 4, 3, 3] y) {{
      q = QuantizeLinear(w, s, z)
      d = DequantizeLinear(q, s, z)
      y = Conv <kernel_shape = [1, 1]> (x, d)
    }}"""
    proto = onnx.parser.parse_model(text)
    arrays = {"w": normal(4, 4, 1, 1), "s": np.full(4, 0.01, np.float32), "z": np.zeros(4, np.int8)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    model = named(ir.from_proto(proto))
    _, found = strip_checked(model)
    assert found["weight", "w"].by.axis == 0
    assert model.opset_imports[""] == 21


def test_k61_a_chain_of_layouts_behind_stored_integers_folds() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 4, 5, 5] x) => (float[1, 6, 3, 3] y)
            <int64[4] to = {{6, 4, 3, 3}}> {{
              d = DequantizeLinear <axis = 0> (w, ws)
              r = Reshape(d, to)
              y = Conv <kernel_shape = [3, 3]> (x, r)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (6, 36)).astype(np.int8),
            ws=np.linspace(0.001, 0.006, 6, dtype=np.float32),
        )
    )
    x = normal(1, 4, 5, 5)
    before = run_as_written(model, x=x)
    _, found = strip_checked(model)
    assert operators(model) == ["Conv"]
    assert found["weight", "w"].by.axis == 0
    np.testing.assert_array_equal(run_as_written(model, x=x), before)


def test_k43_batch_norm_folds_into_the_weight_and_multiplies_its_scales() -> None:
    gamma = np.asarray([0.5, -2.0, 1.5, 0.25], np.float32)
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 3, 6, 6] x) => (float[1, 4, 4, 4] y) {{
              wq = QuantizeLinear <axis = 0> (w, ws, wz)
              wd = DequantizeLinear <axis = 0> (wq, ws, wz)
              c = Conv <kernel_shape = [3, 3]> (x, wd)
              b = BatchNormalization <epsilon = 0.0> (c, gamma, beta, mean, var)
              y = Relu(b)
            }}""",
            w=normal(4, 3, 3, 3),
            ws=np.asarray([0.004, 0.003, 0.002, 0.001], np.float32),
            wz=np.zeros(4, np.int8),
            gamma=gamma,
            beta=normal(4, seed=2),
            mean=normal(4, seed=3),
            var=np.ones(4, np.float32),
        )
    )
    x = normal(1, 3, 6, 6, seed=4, scale=1.0)
    before, scales = run_as_written(model, x=x), array_of(model, "ws")
    integers = quantized_values(
        array_of(model, "w"), Quantizer(scales, np.zeros(4, np.int64), INT8.dtype, 0)
    )
    _, found = strip_checked(model)
    assert operators(model) == ["Conv", "Relu"]
    (weight,) = [s for s in found.values() if s.kind == "weight"]
    np.testing.assert_allclose(weight.by.scale, scales * np.abs(gamma), rtol=1e-6)
    folded = array_of(model, weight.tensor)
    again = quantize_array(folded, weight.by.scale, None, INT8, 0)
    signs = np.sign(gamma).astype(np.int8).reshape(4, 1, 1, 1)
    np.testing.assert_array_equal(again, integers * signs)
    np.testing.assert_allclose(run_as_written(model, x=x), before, atol=1e-5)


# Activations.


def _pair(
    zero: str, scale: str = "0.1", inner: str = "c = Conv <kernel_shape = [1, 1]> (x, w)"
) -> str:
    kind, point = zero.split()
    return f"""{HEAD}
    g (float[1, 4, 3, 3] x) => (float[1, 4, 3, 3] y)
    <float s = {{{scale}}}, {kind} z = {{{point}}}> {{
      {inner}
      q = QuantizeLinear(c, s, z)
      d = DequantizeLinear(q, s, z)
      y = Conv <kernel_shape = [1, 1]> (d, v)
    }}"""


def test_a_quantizer_from_zero_up_leaves_a_clip_where_a_tool_had_dropped_the_relu() -> None:
    model = named(from_text(_pair("uint8 0"), w=normal(4, 4, 1, 1), v=normal(4, 4, 1, 1, seed=1)))
    x = normal(1, 4, 3, 3, seed=2, scale=10.0)
    before = run_as_written(model, x=x)
    stripped, found = strip_checked(model)
    assert operators(model) == ["Conv", "Clip", "Conv"]
    assert found["activation", "c_clipped"].uses == (Use("n_y", 0),)
    assert [r.fault for r in stripped.repairs] == ["saturation"]
    # What is left of the difference is rounding: half a step through 4 weights of the last Conv.
    assert (
        np.abs(run_as_written(model, x=x) - before).max()
        <= 0.05 * np.abs(normal(4, 4, 1, 1, seed=1)).sum(1).max()
    )


@pytest.mark.parametrize(
    ("zero", "inner"),
    [
        ("uint8 0", "r = Conv <kernel_shape = [1, 1]> (x, w) c = Relu(r)"),
        ("int8 -128", "r = Conv <kernel_shape = [1, 1]> (x, w) c = Sigmoid(r)"),
        ("uint8 128", "c = Conv <kernel_shape = [1, 1]> (x, w)"),
        ("uint8 7", "c = Conv <kernel_shape = [1, 1]> (x, w)"),
        ("int8 0", "c = Conv <kernel_shape = [1, 1]> (x, w)"),
    ],
)
def test_no_clip_where_nothing_is_lost_without_it(zero: str, inner: str) -> None:
    model = named(from_text(_pair(zero, inner=inner), w=normal(4, 4, 1, 1), v=normal(4, 4, 1, 1)))
    stripped, found = strip_checked(model)
    assert "Clip" not in operators(model) and not stripped.repairs
    assert found["activation", "c"].by.zero_point == int(zero.split()[1])


def test_k57_k59_ranges_of_zero_points() -> None:
    def found(zero: int, stored: ir.DataType, scale: float = 0.1) -> FoundScale:
        by = Quantizer(np.asarray(scale, np.float32), np.asarray(zero), stored, None)
        return FoundScale("t", "activation", by, (), ())

    middle = found(128, ir.DataType.UINT8).range_for(INT8)
    assert INT8.scale_of(middle.amax) == np.float32(0.1)  # UINT8 around 128 is INT8, bit for bit
    scale = np.float64(np.float32(0.1))
    assert found(0, ir.DataType.UINT8).range_for(INT8).amax == 255 * scale
    assert found(-100, ir.DataType.INT8).range_for(INT8).amax == 227 * scale
    assert found(30, ir.DataType.INT8).range_for(INT8).amax == 158 * scale
    assert found(0, ir.DataType.FLOAT8E4M3FN).range_for(INT8).amax == 448 * scale
    asymmetric = found(100, ir.DataType.UINT8).range_for(UINT8)
    assert (asymmetric.minimum, asymmetric.maximum) == (-100 * scale, 155 * scale)


@pytest.mark.parametrize("scale", ["0.0", "-1.0", "nan", "inf"])
def test_k53_an_unusable_scale_is_dropped_and_named(scale: str) -> None:
    text = _pair("int8 0").replace("0.1", "1.0")
    model = named(from_text(text, w=normal(4, 4, 1, 1), v=normal(4, 4, 1, 1)))
    model.graph.initializers["s"].const_value = ir.tensor(np.asarray(float(scale), np.float32))
    stripped, found = strip_checked(model)
    assert operators(model) == ["Conv", "Conv"]
    assert ("activation", "c") not in found
    (repair,) = stripped.repairs
    assert repair.fault == "bad scale" and repair.tensor == "c"
    assert repair.nodes == ("n_q", "n_d") and "n_q, n_d" in repair.text


def test_integers_that_are_pooled_and_reshaped_move_as_floats() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 4, 6, 6] x) => (float[1, 36] y)
            <float s = {{0.1}}, int8 z = {{0}}, int64[2] to = {{1, 36}}> {{
              q = QuantizeLinear(x, s, z)
              p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (q)
              r = Reshape(p, to)
              y = DequantizeLinear(r, s, z)
            }}"""
        )
    )
    _, found = strip_checked(model)
    assert operators(model) == ["MaxPool", "Reshape"]
    assert model.graph.outputs[0].name == "y"
    assert found["activation", "y"].uses == (Use("", 0),)
    x = normal(1, 4, 6, 6, scale=1.0)
    expected = x.reshape(1, 4, 3, 2, 3, 2).max((3, 5)).reshape(1, 36)
    np.testing.assert_array_equal(run_as_written(model, x=x), expected)


def test_a_stored_embedding_becomes_a_float_table() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (int64[3] ids) => (float[3, 4] y)
            <float s = {{0.1}}, uint8 z = {{100}}> {{
              q = Gather(table_quantized, ids)
              d = DequantizeLinear(q, s, z)
              y = Add(d, d)
            }}""",
            table_quantized=np.arange(40, dtype=np.uint8).reshape(10, 4) + 90,
        )
    )
    ids = np.asarray([1, 9, 4], np.int64)
    before = run_as_written(model, ids=ids)
    strip_checked(model)
    assert operators(model) == ["Gather", "Add"] and set(model.graph.initializers) == {"table"}
    np.testing.assert_array_equal(run_as_written(model, ids=ids), before)


def test_quantized_inputs_and_outputs_of_the_model_stay() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (int8[1, 4] x) => (int8[1, 4] y)
            <float s = {{0.1}}, int8 z = {{0}}> {{
              d = DequantizeLinear(x, s, z)
              r = Relu(d)
              y = QuantizeLinear(r, s, z)
            }}"""
        )
    )
    stripped, _ = strip_checked(model)
    assert operators(model) == ["DequantizeLinear", "Relu", "QuantizeLinear"]
    assert [r.fault for r in stripped.repairs] == ["left"]
    assert "callers see its type" in stripped.repairs[0].text


def test_k15_k65_one_tensor_with_two_scales_keeps_both_and_names_stay_unique() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 4, 3, 3] x) => (float[1, 4, 3, 3] a, float[1, 4, 3, 3] b)
            <float s1 = {{0.1}}, float s2 = {{0.2}}, int8 z = {{0}}> {{
              q1 = QuantizeLinear(x, s1, z)
              d1 = DequantizeLinear(q1, s1, z)
              w1 = DequantizeLinear(w, s1)
              a = Conv <kernel_shape = [1, 1]> (d1, w1, w_1)
              q2 = QuantizeLinear(x, s2, z)
              d2 = DequantizeLinear(q2, s2, z)
              w2 = DequantizeLinear(w, s2)
              b = Conv <kernel_shape = [1, 1]> (d2, w2, w_1)
            }}""",
            w=np.arange(16, dtype=np.int8).reshape(4, 4, 1, 1),
            w_1=normal(4),
        )
    )
    stripped = strip_qdq(model)
    inputs = [value.name or "" for node in model.graph for value in node.inputs if value]
    assert inputs[0] == inputs[3] == "x" and inputs[2] == inputs[5] == "w_1"
    assert len(set(inputs)) == 4
    for name, scale in ((inputs[1], 0.1), (inputs[4], 0.2)):
        expected = np.arange(16, dtype=np.float32) * np.float32(scale)
        np.testing.assert_array_equal(array_of(model, name).reshape(-1), expected)
    on_x = [s for s in stripped.scales(model) if s.tensor == "x"]
    assert [(float(s.by.scale), s.uses) for s in on_x] == [
        (np.float32(0.1), (Use("n_a", 0),)),
        (np.float32(0.2), (Use("n_b", 0),)),
    ]


def test_k67_half_scales_beside_float_tensors_give_one_type() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 4, 4] x) => (float[1, 16, 4, 4] y) {{
              q = QuantizeLinear(x, s, z)
              d = DequantizeLinear(q, s, z)
              y = Conv <kernel_shape = [1, 1]> (d, w)
            }}""",
            s=np.asarray(0.0123, np.float16),
            z=np.zeros((), np.int8),
            w=normal(16, 16, 1, 1),
        )
    )
    _, found = strip_checked(model)
    assert found["activation", "x"].by.scale == np.float32(np.float16(0.0123))
    assert {v.dtype for n in model.graph for v in (*n.inputs, *n.outputs) if v} == {
        ir.DataType.FLOAT
    }


def test_never_negative_knows_the_operators() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] a, float[1, 8, 1, 1] b, float[1, 4, 4, 4] c)
            <float zero = {{0.0}}> {{
              r = Relu(x)
              k = Clip(x, zero)
              a = Add(r, k)
              j = Concat <axis = 1> (r, a)
              b = GlobalAveragePool(j)
              c = Sub(r, k)
            }}"""
        )
    )
    values = {value.name: never_negative(value) for node in model.graph for value in node.outputs}
    assert values == {"r": True, "k": True, "a": True, "j": True, "b": True, "c": False}
    assert not never_negative(model.graph.inputs[0])
