from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from fuseq.errors import OptionError
from fuseq.passes.canonical import canonicalize
from fuseq.passes.float_range import Fault, constant_fault, magnitude_fault, scale_fault
from fuseq.passes.float_slots import slots_of
from fuseq.passes.two_types import two_type_nodes
from fuseq.passes.typing import set_precision
from tests.graphs import attention_net, conv_net, from_text, normal
from tests.passes.reading import lines, node_named, ops, run, run_reference, value_named

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
HALF, BF16, FULL = ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT


def _typed(model: ir.Model) -> list[str]:
    """One line a node: what it computes in, by its float outputs (else inputs)."""
    short = {HALF: "fp16", BF16: "bf16", FULL: "fp32", ir.DataType.DOUBLE: "fp64"}
    found = []
    for node in model.graph:
        values = [*node.outputs, *node.inputs]
        types = [short[v.dtype] for v in values if v is not None and v.dtype in short]
        found.append(f"{node.op_type} {types[0] if types else '-'}")
    return found


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    a, b = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("build", [conv_net, attention_net])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_one_cast_in_one_cast_out_and_one_type_between(build: object, precision: str) -> None:
    model = build()  # type: ignore[operator]
    shape = tuple(model.graph.inputs[0].shape)
    x = normal(*shape, seed=7, scale=1)
    before = run(model, x=x)[0]
    assert set_precision(model, precision) == []
    assert two_type_nodes(model) == []
    assert ops(model)[0] == ops(model)[-1] == "Cast" and ops(model).count("Cast") == 2
    assert [value.dtype for value in (*model.graph.inputs, *model.graph.outputs)] == [FULL, FULL]
    assert [value.name for value in model.graph.outputs] == ["y"]
    wanted = {"fp16": HALF, "bf16": BF16}[precision]
    floats = [v for v in model.graph.initializers.values() if v.dtype != ir.DataType.INT64]
    assert {value.dtype for value in floats} == {wanted}
    if precision == "fp16":
        assert _cosine(run(model, x=x)[0], before) > 0.9999
    elif build is conv_net:
        assert model.opset_imports[""] == 22  # Conv knows BF16 from there
        assert _cosine(run_reference(model, x=x)[0], before) > 0.9995


def test_convert_gives_inputs_and_outputs_the_type() -> None:
    model = conv_net()
    set_precision(model, "fp16", io_types="convert")
    assert "Cast" not in ops(model)
    assert model.graph.inputs[0].dtype == model.graph.outputs[0].dtype == HALF


def test_an_fp16_model_goes_to_fp32_and_back() -> None:
    model = conv_net()
    x = normal(1, 16, 8, 8, seed=7, scale=1)
    set_precision(model, "fp16", io_types="convert")
    before = run(model, x=x.astype(np.float16))[0]
    set_precision(model, "fp32", io_types="convert")
    assert {v.dtype for v in model.graph.initializers.values()} == {FULL}
    assert _cosine(run(model, x=x)[0], before) > 0.9999
    set_precision(model, "fp16")
    assert ops(model).count("Cast") == 2 and two_type_nodes(model) == []


def test_a_bf16_model_keeps_its_own_inputs_under_keep() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 22]>
        net (bfloat16[1, 4] x) => (bfloat16[1, 4] y) { a = Relu(x)\n y = Mul(a, w) }""",
        w=normal(4).astype(ml_dtypes.bfloat16),
    )
    assert set_precision(model, "fp16") == []
    assert _typed(model) == ["Cast fp16", "Relu fp16", "Mul fp16", "Cast bf16"]
    assert two_type_nodes(model) == []


OVERFLOW = f"""{HEAD} net (float[2, 8] x) => (float[2, 8] y) {{
    a = MatMul(x, w1)
    b = Relu(a)
    c = MatMul(b, w2)
    d = Reshape(c, shape)
    e = Sigmoid(d)
    y = MatMul(e, w3)
  }}"""


def _overflow_model() -> ir.Model:
    return from_text(
        OVERFLOW,
        w1=normal(8, 8),
        w2=normal(8, 8),
        w3=normal(8, 8),
        shape=np.array([2, 8]),
    )


def test_a_value_that_overflows_keeps_its_writer_and_readers_in_fp32() -> None:
    model = _overflow_model()
    notes = set_precision(model, "fp16", magnitudes={"c": 40000.0, "a": 30.0, "d": 40000.0})
    assert _typed(model) == [
        *("Cast fp16", "MatMul fp16", "Relu fp16", "Cast fp32", "MatMul fp32", "Reshape fp32"),
        *("Sigmoid fp32", "Cast fp16", "MatMul fp16", "Cast fp32"),
    ]
    assert two_type_nodes(model) == []
    assert [str(note) for note in notes] == [
        "MatMul, Reshape, Sigmoid: FP32, not FLOAT16, because 'c' overflows (up to 4e+04)."
    ]


@pytest.mark.parametrize("amax", [1e-5, float("nan"), float("inf"), 33000.0])
def test_what_cannot_be_held_stays_fp32(amax: float) -> None:
    model = _overflow_model()
    notes = set_precision(model, "fp16", magnitudes={"b": amax})
    assert len(notes) == 1 and "Relu fp32" in _typed(model)
    assert two_type_nodes(model) == []


@pytest.mark.parametrize("amax", [0.0, 1e-3, 32000.0])
def test_what_can_be_held_goes_to_fp16(amax: float) -> None:
    model = _overflow_model()
    assert set_precision(model, "fp16", magnitudes={"b": amax}) == []


def test_bf16_has_the_range_of_fp32() -> None:
    model = _overflow_model()
    assert set_precision(model, "bf16", magnitudes={"b": 1e30, "c": 1e-30}) == []


def test_a_magnitude_is_known_behind_a_pair_too() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 8] x) => (float[2, 8] y) <float s = {{800.0}}, int8 z = {{0}}> {{
          a = Relu(x)
          q = QuantizeLinear(a, s, z)
          d = DequantizeLinear(q, s, z)
          y = Sigmoid(d)
        }}"""
    )
    set_precision(model, "fp16", magnitudes={"a": 1e5})
    assert _typed(model) == [
        *("Relu fp32", "QuantizeLinear fp32", "DequantizeLinear fp32", "Sigmoid fp32")
    ]


def test_an_epsilon_that_vanishes_keeps_its_division_in_fp32() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 8] x) => (float[2, 8] y)
        <float eps = {{1e-12}}, int64[1] axes = {{1}}, int64[2] shape = {{2, 8}}> {{
          r = Relu(x)
          n = ReduceL1(r, axes)
          c = Clip(n, eps)
          e = Expand(c, shape)
          d = Div(r, e)
          y = Sigmoid(d)
        }}"""
    )
    notes = set_precision(model, "fp16")
    assert _typed(model) == [
        *("Cast fp16", "Relu fp16", "Cast fp32", "ReduceL1 fp16", "Cast fp32", "Clip fp32"),
        *("Expand fp32", "Div fp32", "Cast fp16", "Sigmoid fp16", "Cast fp32"),
    ]
    assert two_type_nodes(model) == []
    assert "'eps' vanishes in FLOAT16" in notes[0].text
    x = np.zeros((2, 8), np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], np.full((2, 8), 0.5, np.float32))


def test_a_bias_that_vanishes_beside_a_normal_output_is_no_reason() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 2] x) => (float[2, 2] y)
        <float[2, 2] w = {{1.0, 2.0, 3.0, 4.0}}, float[2] b = {{1e-9, 0.5}}> {{
          r = Relu(x)
          g = Gemm(r, w, b)
          m = MatMul(g, w)
          y = Add(b, m)
        }}"""
    )
    unknown = model.clone()
    set_precision(model, "fp16", magnitudes={"r": 1.0, "g": 2.0, "m": 8.0, "y": 8.0})
    assert {"Gemm fp16", "MatMul fp16", "Add fp16"} <= set(_typed(model))
    set_precision(unknown, "fp16")
    assert {"Gemm fp32", "Add fp32"} <= set(_typed(unknown))


def test_an_epsilon_that_fp16_holds_stays_in_fp16() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 8] x) => (float[2, 8] y) <float eps = {{1e-5}}> {{
          a = Add(x, eps)
          y = Sqrt(a)
        }}"""
    )
    assert set_precision(model, "fp16") == []


def test_bounds_beyond_the_type_are_clamped_and_never_infinite() -> None:
    model = from_text(
        f"""{HEAD} net (float[4] x) => (float[4] y)
        <float low = {{-3.4028234663852886e38}}, float high = {{3.4028234663852886e38}}> {{
          a = Clip(x, low, high)
          y = Max(a, low)
        }}"""
    )
    assert set_precision(model, "fp16") == []
    assert lines(model)[1:3] == [
        "a = Clip(x_fp16, -65504.0, 65504.0)",
        "y_fp16 = Max(a, -65504.0)",
    ]


def test_the_mask_constant_of_3_4e38_never_becomes_minus_infinity() -> None:
    model = from_text(
        f"""{HEAD} net (float[1, 2, 4] q, float[1, 4, 2] k, bool[1, 1, 2] m) => (float[1, 2, 2] y)
        <float zero = {{0.0}}, float low = {{-3.4028234663852886e38}}> {{
          s = MatMul(q, k)
          f = Where(m, zero, low)
          a = Add(s, f)
          y = Softmax <axis = -1> (a)
        }}"""
    )
    canonicalize(model)
    assert set_precision(model, "fp16") == []
    floats = [v.const_value.numpy() for v in model.graph.initializers.values()]
    assert all(np.isfinite(array).all() for array in floats)
    feeds = {"q": normal(1, 2, 4), "k": normal(1, 4, 2), "m": np.array([[[True, False]]])}
    np.testing.assert_array_equal(run(model, **feeds)[0], [[[1, 0], [1, 0]]])
    nothing = run(model, **{**feeds, "m": np.zeros((1, 1, 2), bool)})[0]
    assert np.isfinite(nothing).all()


def test_another_constant_that_overflows_keeps_its_reader_in_fp32() -> None:
    model = from_text(
        f"""{HEAD} net (float[4] x) => (float[4] y) <float big = {{1e6}}> {{
          a = Mul(x, big)
          y = Sigmoid(a)
        }}"""
    )
    notes = set_precision(model, "fp16")
    assert _typed(model) == ["Mul fp32", "Cast fp16", "Sigmoid fp16", "Cast fp32"]
    assert "'big' overflows" in notes[0].text


def test_types_that_an_operator_fixes_stay() -> None:
    model = from_text(
        f"""{HEAD} net (float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y, float[3] r)
        <float[4] scales = {{1.0, 1.0, 2.0, 2.0}}, float a = {{0.0}}, float b = {{3.0}},
         float c = {{1.0}}> {{
          y = Resize <mode = "nearest"> (x, , scales)
          t = Range(a, b, c)
          r = Neg(t)
        }}"""
    )
    notes = set_precision(model, "fp16")
    assert value_named(model, "scales").dtype == FULL
    assert "Range fp32" in _typed(model) and "Resize fp16" in _typed(model)
    assert notes[0].text.endswith("because ONNX has no FLOAT16 Range.")
    assert two_type_nodes(model) == []


def test_positions_stay_fp32_until_they_meet_an_activation() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, s, 4] x, int64[b, s] at) => (float[b, s, 4] y)
        <float[1, 1, 4] freq = {{1.0, 0.1, 0.01, 0.001}}, int64[1] axis = {{-1}}> {{
          u = Unsqueeze(at, axis)
          f = Cast <to = 1> (u)
          p = Mul(f, freq)
          c = Cos(p)
          y = Mul(x, c)
        }}"""
    )
    set_precision(model, "fp16", io_types="convert")
    assert _typed(model) == [
        *("Unsqueeze -", "Cast fp32", "Mul fp32", "Cos fp32", "Cast fp16", "Mul fp16")
    ]
    at = np.array([[4095, 2049]])
    got = run(model, x=np.ones((1, 2, 4), np.float16), at=at)[0]
    expected = np.cos(at[..., None] * np.array([1.0, 0.1, 0.01, 0.001]))
    np.testing.assert_allclose(got, expected, atol=2e-3)  # FP16 positions would be off by 1


def test_a_padding_mask_and_small_integers_are_no_positions() -> None:
    model = from_text(
        f"""{HEAD} net (uint8[1, 3, 4, 4] image, int64[1, 3] mask) => (float[1, 3, 4, 4] y)
        <float scale = {{0.0039}}, float one = {{1.0}}, int64[2] axes = {{2, 3}}> {{
          f = Cast <to = 1> (image)
          g = Div(f, scale)
          m = Cast <to = 1> (mask)
          i = Sub(one, m)
          u = Unsqueeze(i, axes)
          y = Mul(g, u)
        }}"""
    )
    assert set_precision(model, "fp16", io_types="convert") == []


@pytest.mark.parametrize(
    ("inside", "kept"),
    [
        ("a = Pow(w, two)\n n = Relu(a)", True),
        ("a = Exp(w)\n n = Relu(a)", True),
        ("n = Softmax(w)", False),
        ("a = Add(w, two)\n n = Relu(a)", False),
    ],
)
def test_an_upcast_of_the_author_is_kept_where_it_matters(inside: str, kept: bool) -> None:
    model = from_text(
        f"""{HEAD} net (float16[2, 4] x) => (float16[2, 4] y) <float two = {{2.0}}> {{
          h = MatMul(x, m)
          w = Cast <to = 1> (h)
          {inside}
          y = Cast <to = 10> (n)
        }}""",
        m=normal(4, 4).astype(np.float16),
    )
    notes = set_precision(model, "fp16")
    assert bool(notes) == kept
    assert ("Relu fp32" in _typed(model)) == kept
    assert two_type_nodes(model) == []
    if not kept:
        assert "Cast" not in ops(model) or ops(model)[-1] == "Cast"


def test_squares_that_are_averaged_stay_fp32_as_rms_norm_needs_it() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 64] x) => (float[2, 64] y)
        <float two = {{2.0}}, float eps = {{1e-6}}, int64[1] axes = {{-1}}> {{
          sq = Pow(x, two)
          v = ReduceMean(sq, axes)
          e = Add(v, eps)
          r = Sqrt(e)
          i = Reciprocal(r)
          n = Mul(x, i)
          y = Mul(n, g)
        }}""",
        g=normal(64, scale=1),
    )
    x = normal(2, 64, scale=400)  # squares beyond 65504
    before = run(model, x=x)[0]
    set_precision(model, "fp16")
    assert _typed(model)[-3:] == ["Cast fp16", "Mul fp16", "Cast fp32"]
    assert _cosine(run(model, x=x)[0], before) > 0.9999
    assert two_type_nodes(model) == []


QDQ = f"""{HEAD} net (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y)
    <int8 z = {{0}}, float s = {{0.02}}> {{
      r = Relu(x)
      q = QuantizeLinear(r, s, z)
      d = DequantizeLinear(q, s, z)
      w = DequantizeLinear <axis = 0> (wq, ws)
      y = Conv(d, w, b)
    }}"""


def _qdq_model(weight_scale: np.ndarray) -> ir.Model:
    integers = np.random.default_rng(0).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8)
    return from_text(QDQ, wq=integers, ws=weight_scale.astype(np.float32), b=normal(4))


def test_k67_k69_scales_take_the_type_of_their_tensor() -> None:
    model = _qdq_model(np.full(4, 0.01))
    assert set_precision(model, "fp16") == []
    assert {value_named(model, name).dtype for name in ("s", "ws", "b", "d", "w")} == {HALF}
    assert value_named(model, "wq").dtype == ir.DataType.INT8
    assert two_type_nodes(model) == []


def test_k67_an_fp16_scale_on_an_fp32_tensor_is_found_and_mended() -> None:
    model = _qdq_model(np.full(4, 0.01))
    scale = model.graph.initializers["s"]
    scale.const_value, scale.dtype = ir.tensor(np.float16(0.02), name="s"), HALF
    (q, d) = two_type_nodes(model)
    assert q.startswith("QuantizeLinear") and d.startswith("DequantizeLinear")
    set_precision(model, "fp32")
    assert two_type_nodes(model) == []


def test_a_scale_that_fp16_cannot_hold_keeps_its_pair_in_fp32_alone() -> None:
    model = _qdq_model(np.array([0.01, 0.01, 1e-7, 0.01]))
    notes = set_precision(model, "fp16")
    assert len(notes) == 1 and "'ws' vanishes" in notes[0].text
    assert value_named(model, "ws").dtype == FULL
    assert [t for t in _typed(model) if t.startswith(("Conv", "Relu"))] == [
        "Relu fp16",
        "Conv fp16",
    ]
    assert two_type_nodes(model) == []


def test_nodes_that_are_asked_for_stay_fp32() -> None:
    model = conv_net()
    notes = set_precision(model, "fp16", keep_fp32=["n_c2"])
    assert value_named(model, "c2").dtype == FULL and value_named(model, "c1").dtype == HALF
    assert notes[0].nodes == ("n_c2",)
    assert two_type_nodes(model) == []


@pytest.mark.parametrize("wrong", [{"precision": "int8"}, {"keep_fp32": ["nothing"]}])
def test_wrong_options_are_named(wrong: dict[str, object]) -> None:
    options = {"precision": "fp16", **wrong}
    with pytest.raises(OptionError, match=r"int8|nothing"):
        set_precision(conv_net(), **options)  # type: ignore[arg-type]


def test_subgraphs_and_unknown_operators_keep_their_types() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        net (float[4] x, bool c) => (float[4] y) {
          r = Relu(x)
          z = If (c) <
            then_branch = t () => (float[4] p) { p = Neg(r) },
            else_branch = e () => (float[4] q) { q = Abs(r) }>
          y = Sigmoid(z)
        }"""
    )
    x = np.array([1, -2, 3, 4], np.float32)
    before = run(model, x=x, c=np.array(True))[0]
    set_precision(model, "fp16")
    assert two_type_nodes(model) == []
    np.testing.assert_allclose(run(model, x=x, c=np.array(True))[0], before, atol=1e-3)
    assert value_named(model, "z").dtype == FULL and value_named(model, "r").dtype == HALF


def test_an_operator_of_another_domain_gets_what_it_had() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        net (float[4] x) => (float[4] y) { r = Relu(x)\n z = own.Thing(r)\n y = Sigmoid(z) }"""
    )
    value_named(model, "z").dtype = FULL
    set_precision(model, "fp16")
    assert _typed(model) == [
        *("Cast fp16", "Relu fp16", "Cast fp32", "Thing fp32", "Cast fp16", "Sigmoid fp16"),
        "Cast fp32",
    ]


def test_one_weight_for_two_types_becomes_two() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) {{
          y = Add(x, w)
          z = Mul(x, w)
        }}""",
        w=normal(4),
    )
    model.graph[0].name = "keep"
    set_precision(model, "fp16", keep_fp32=["keep"])
    types = {value.name: value.dtype for value in model.graph.initializers.values()}
    assert types == {"w": FULL, "w_fp16": HALF}


def test_attributes_that_spell_a_type_follow() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 2] x, int64[2] shape) => (float[2, 2] y) {{
          e = EyeLike <dtype = 1> (x)
          f = ConstantOfShape <value = float[1] {{0.5}}> (shape)
          r = RandomNormalLike <dtype = 1> (x)
          g = ConstantOfShape(shape)
          a = Add(e, f)
          b = Add(a, r)
          y = Add(b, g)
        }}"""
    )
    set_precision(model, "fp16", io_types="convert")
    assert {node.outputs[0].dtype for node in model.graph} == {HALF}
    assert node_named(model, model.graph[0].name or "").attributes["dtype"].as_int() == 10
    assert two_type_nodes(model) == []
    run(model, x=np.ones((2, 2), np.float16), shape=np.array([2, 2]))


def test_double_goes_to_the_precision() -> None:
    model = from_text(
        f"{HEAD} net (double[4] x) => (double[4] y) {{ a = Mul(x, w)\n y = Relu(a) }}",
        w=normal(4).astype(np.float64),
    )
    set_precision(model, "fp32")
    assert _typed(model) == ["Cast fp32", "Mul fp32", "Relu fp32", "Cast fp64"]


def test_slots_are_read_from_the_schema() -> None:
    model = from_text(
        f"""{HEAD} net (float[1, 2, 4, 4] x, int64 k) => (int64[4] s, float[1, 2, 8, 8] y)
        <float[4] scales = {{1.0, 1.0, 2.0, 2.0}}> {{
          s = Shape(x)
          y = Resize(x, , scales)
        }}"""
    )
    shape, resize = (slots_of(node, 21) for node in model.graph)
    assert (shape.inputs, shape.outputs) == ((0,), ())
    assert (resize.inputs, resize.fixed_inputs) == ((0,), ((2, FULL),))


@pytest.mark.parametrize(
    ("array", "dtype", "fault"),
    [
        ([1e-5], HALF, None),
        ([1e-6], HALF, None),
        ([1e-8], HALF, Fault.VANISHES),
        ([0.0], HALF, None),
        ([65504.0], HALF, None),
        ([65520.0], HALF, Fault.OVERFLOWS),
        ([np.inf, -np.inf], HALF, None),
        ([-3.4028234663852886e38], BF16, Fault.OVERFLOWS),
        ([1e-30], BF16, None),
        ([1e-9] * 20, HALF, Fault.VANISHES),
        ([1e-9] * 19 + [0.5], HALF, None),
        ([], HALF, None),
    ],
)
def test_constants_against_the_limits(
    array: list[float], dtype: ir.DataType, fault: Fault | None
) -> None:
    assert constant_fault(np.array(array, np.float32), dtype) is fault


def test_scales_and_magnitudes_against_the_limits() -> None:
    assert scale_fault(np.array([1e-5, 0.5]), HALF) is None
    assert scale_fault(np.array([1e-6, 0.5]), HALF) is Fault.VANISHES
    assert scale_fault(np.array(7e4), HALF) is Fault.OVERFLOWS
    assert magnitude_fault(2.0**-14, HALF) is None
    assert magnitude_fault(2.0**-15, HALF) is Fault.VANISHES
    assert magnitude_fault(32752.0, HALF) is None
    assert magnitude_fault(32753.0, HALF) is Fault.OVERFLOWS


def test_moves_and_bridges_between_islands_have_no_casts() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 4] x) => (float[4, 2] y) {{
          a = MatMul(x, w)
          t = Transpose(a)
          b = Neg(t)
          c = MatMul(w, b)
          d = Relu(c)
          y = MatMul(d, m)
        }}""",
        w=normal(4, 4),
        m=normal(2, 2),
    )
    for node in model.graph:
        node.name = node.outputs[0].name
    set_precision(model, "fp16", io_types="convert", keep_fp32=["a", "c"])
    assert _typed(model) == [
        *("Cast fp32", "MatMul fp32", "Transpose fp32", "Neg fp32", "MatMul fp32", "Cast fp16"),
        *("Relu fp16", "MatMul fp16"),
    ]


def test_buckets_of_distances_are_computed_in_fp32() -> None:
    model = from_text(
        f"""{HEAD} net (int64[b, s] at, float[64, 8] x) => (float[b, s, 8] y)
        <float width = {{16.0}}> {{
          f = Cast <to = 1> (at)
          d = Div(f, width)
          l = Floor(d)
          i = Cast <to = 7> (l)
          y = Gather <axis = 0> (x, i)
        }}"""
    )
    (note,) = set_precision(model, "fp16", io_types="convert")
    assert _typed(model) == ["Cast fp32", "Div fp32", "Floor fp32", "Cast fp32", "Gather fp16"]
    assert "positions or sizes" in note.text
    table = np.arange(512, dtype=np.float16).reshape(64, 8) / 8
    got = run(model, at=np.array([[1007, 15]]), x=table)[0]
    np.testing.assert_array_equal(got[0, :, 0], [62.0, 0.0])


def test_what_follows_an_unknown_operator_keeps_its_type_until_it_is_known() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        net (float[4] x) => (float[4] y) {
          r = Relu(x)
          z = own.Thing(r)
          s = Sigmoid(z)
          y = Cast <to = 1> (s)
        }"""
    )
    (note,) = set_precision(model, "fp16")
    assert note.text.startswith("ai.onnx.Cast, ai.onnx.Sigmoid, own.Thing: ONNX does not know")
    assert [node.op_type for node in model.graph] == [
        *("Cast", "Relu", "Cast", "Thing", "Sigmoid", "Cast")
    ]
    assert value_named(model, "y").dtype == FULL
