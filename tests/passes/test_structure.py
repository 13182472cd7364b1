"""Weights, shapes, names, dropouts, expands: what has no arithmetic of its own."""

from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.passes.clean import clean_up, fold_constants, lift_constants
from fuseq.passes.constant_types import unify_constant_types
from fuseq.passes.convert_weights import LAZY_BYTES, converted
from fuseq.passes.dropout import remove_dropouts
from fuseq.passes.expand import drop_expands
from fuseq.passes.flat_softmax import merge_flat_softmaxes
from fuseq.passes.known_sizes import fold_known_sizes
from fuseq.passes.names import fix_names, fresh
from fuseq.passes.shapes import infer_shapes, static_shapes
from fuseq.passes.static_reshape import make_reshapes_static
from fuseq.passes.symbolic_dims import shape_elements
from fuseq.passes.weight_chains import resolve_weights
from tests.graphs import from_text, normal
from tests.passes.reading import lines, ops, run, value_named

HEAD = '<ir_version: 8, opset_import: ["" : 21]>'


def test_k61_a_weight_computed_from_constants_is_one_initializer() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 128] x) => (float[2, 160] y)
        <int64[3] cut = {{160, 0, 2}}, int64[2] flat = {{160, -1}}, int64[1] axis = {{0}}> {{
          a = Unsqueeze(w, axis)
          b = Squeeze(a, axis)
          c = Reshape(b, cut)
          d = Cast <to = 1> (c)
          e = Reshape(d, flat)
          f = Transpose(e)
          g = Flatten(f)
          y = MatMul(x, g)
        }}""",
        w=normal(160, 64, 2),
    )
    model.graph.initializers["cut"].const_value = ir.tensor(np.array([160, 64, 2]))
    x = normal(2, 128, seed=1)
    before = run(model, x=x)[0]
    resolve_weights(model)
    clean_up(model)
    assert ops(model) == ["MatMul"]
    np.testing.assert_array_equal(run(model, x=x)[0], before)


@pytest.mark.parametrize("stored", [True, False])
def test_k39_a_transpose_behind_a_quantized_weight_goes_into_it(stored: bool) -> None:
    integers = np.random.default_rng(0).integers(-127, 128, (5, 3)).astype(np.int8)
    scales = np.linspace(0.01, 0.05, 5, dtype=np.float32)
    quantize = "" if stored else "q = QuantizeLinear <axis = 0> (w, s, z)"
    weight = {"q": integers} if stored else {"w": (integers * scales[:, None])}
    model = from_text(
        f"""{HEAD} net (float[2, 3] x) => (float[2, 5] y) {{
          {quantize}
          d = DequantizeLinear <axis = 0> (q, s, z)
          t = Transpose <perm = [1, 0]> (d)
          y = MatMul(x, t)
        }}""",
        s=scales,
        z=np.zeros(5, np.int8),
        **weight,
    )
    x = normal(2, 3, seed=1)
    before = run(model, x=x)[0]
    resolve_weights(model)
    clean_up(model)
    kept = [] if stored else ["QuantizeLinear"]
    assert ops(model) == [*kept, "DequantizeLinear", "MatMul"]
    dequantize = model.graph[len(kept)]
    assert dequantize.attributes["axis"].as_int() == 1
    np.testing.assert_array_equal(run(model, x=x)[0], before)


def test_a_weight_that_a_graph_output_shows_keeps_its_node() -> None:
    model = from_text(
        f"{HEAD} net (float[2, 3] x) => (float[3, 2] y, float[2, 3] z) "
        "{ y = Transpose(w)\n z = Relu(x) }",
        w=normal(2, 3),
    )
    resolve_weights(model)
    assert ops(model) == ["Transpose", "Relu"]


def test_big_weights_in_files_are_converted_when_they_are_read(tmp_path: object) -> None:
    array = normal(600, 600)
    reads = []

    def read() -> ir.TensorProtocol:
        reads.append(1)
        return ir.tensor(array)

    lazy = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape(array.shape))
    assert lazy.nbytes > LAZY_BYTES
    half = converted(lazy, ir.DataType.FLOAT16)
    assert reads == [] and half.dtype == ir.DataType.FLOAT16
    np.testing.assert_array_equal(half.numpy(), array.astype(np.float16))


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(ir.DataType.FLOAT16, 65504.0), (ir.DataType.BFLOAT16, 3.3895313892515355e38)],
)
def test_a_finite_number_never_becomes_infinite(dtype: ir.DataType, limit: float) -> None:
    lowest = np.finfo(np.float32).min
    array = np.array([lowest, 1.0, np.inf, -np.inf, np.nan, -lowest], np.float32)
    got = converted(ir.tensor(array), dtype).numpy().astype(np.float64)
    np.testing.assert_array_equal(got, [-limit, 1.0, np.inf, -np.inf, np.nan, limit])


def test_a_reshape_gets_a_constant_where_sizes_are_known_or_copied() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, s, 8] x) => (float[b, s, 2, 4] y)
        <int64[1] two = {{2}}, int64[1] open = {{-1}}, int64[1] zero = {{0}}, int64[1] one = {{1}}>
        {{
          shape = Shape(x)
          b0 = Slice(shape, zero, one)
          s0 = Slice(shape, one, two)
          target = Concat <axis = 0> (b0, s0, two, open)
          y = Reshape(x, target)
        }}"""
    )
    x = normal(3, 5, 8)
    before = run(model, x=x)[0]
    make_reshapes_static(model)
    clean_up(model)
    assert lines(model) == ["y = Reshape(x, [0, 0, 2, 4])"]
    np.testing.assert_array_equal(run(model, x=x)[0], before)


def test_a_reshape_with_two_unknown_sizes_stays() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, s, 8] x, int64[3] target) => (float[p, q, r] y) {{
          y = Reshape(x, target)
        }}"""
    )
    make_reshapes_static(model)
    assert lines(model) == ["y = Reshape(x, target)"]


def test_arithmetic_on_static_sizes_is_folded_though_the_batch_is_open() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, 6, 16] x) => (float[b, 6, 16] y)
        <int64 two = {{2}}, float half = {{0.5}}> {{
          shape = Shape(x)
          width = Gather(shape, two)
          f = Cast <to = 1> (width)
          root = Pow(f, half)
          y = Div(x, root)
        }}"""
    )
    fold_known_sizes(model)
    fold_constants(model)
    clean_up(model)
    assert lines(model) == ["y = Div(x, 4.0)"]


def test_softmax_through_a_flattened_tensor_is_softmax() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, 3, 5] x) => (float[b, 3, 5] y) <int64[3] target = {{-1, 3, 5}}> {{
          f = Flatten <axis = 2> (x)
          s = Softmax <axis = -1> (f)
          y = Reshape(s, target)
        }}"""
    )
    x = normal(2, 3, 5, scale=2)
    before = run(model, x=x)[0]
    merge_flat_softmaxes(model)
    assert lines(model) == ["y = Softmax(x)"]
    np.testing.assert_allclose(run(model, x=x)[0], before, rtol=1e-6)


def test_softmax_of_a_flattened_tensor_that_gets_another_shape_stays() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, 3, 5] x) => (float[b, 5, 3] y) <int64[3] target = {{-1, 5, 3}}> {{
          f = Flatten <axis = 2> (x)
          s = Softmax <axis = -1> (f)
          y = Reshape(s, target)
        }}"""
    )
    before = lines(model)
    merge_flat_softmaxes(model)
    assert lines(model) == before


def test_shape_arithmetic_is_followed_to_the_axis_it_came_from() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, 6, s] x) => (int64[4] y)
        <int64[1] two = {{2}}, int64 last = {{-1}}, int64[1] z = {{0}}> {{
          part = Shape <start = 1, end = 3> (x)
          size = Gather(part, last)
          up = Unsqueeze(size, z)
          whole = Shape(x)
          y = Concat <axis = 0> (part, up, two)
        }}"""
    )
    x = model.graph.inputs[0]
    assert shape_elements(value_named(model, "y")) == [6, (x, 2), (x, 2), 2]
    assert shape_elements(value_named(model, "whole")) == [(x, 0), 6, (x, 2)]


def test_an_expand_goes_where_readers_broadcast_and_stays_where_not() -> None:
    text = f"""{HEAD} net (float[b, 2, 3, 3] s, bool[1, 1, 3, 3] m) => (float[{{out}}] y)
        <float zero = {{{{0.0}}}}, float low = {{{{-9.0}}}}, int64[1] one = {{{{1}}}},
         int64[1] z = {{{{0}}}}, int64[3] rest = {{{{1, 3, 3}}}}> {{{{
          shape = Shape(s)
          batch = Slice(shape, z, one)
          target = Concat <axis = 0> (batch, rest)
          e = Expand(m, target)
          w = Where(e, zero, low)
          {{last}}
        }}}}"""
    model = from_text(text.format(out="b, 2, 3, 3", last="y = Add(s, w)"))
    for value in (value_named(model, "e"), value_named(model, "w")):
        value.shape = ir.Shape(["b", 1, 3, 3])
    value_named(model, "y").shape = ir.Shape(["b", 2, 3, 3])
    drop_expands(model)
    clean_up(model)
    assert lines(model) == ["w = Where(m, 0.0, -9.0)", "y = Add(s, w)"]
    model = from_text(text.format(out="b, 1, 3, 3", last="y = Relu(w)"))
    before = lines(model)
    drop_expands(model)
    assert lines(model) == before


def test_dropout_in_training_mode_is_removed_with_a_note() -> None:
    model = from_text(
        f"""{HEAD} net (float[4] x) => (float[4] y, bool[4] m)
        <float ratio = {{0.5}}, bool yes = {{1}}> {{
          a = Relu(x)
          b, m = Dropout(a, ratio, yes)
          c = Dropout(b, ratio)
          y = Sigmoid(c)
        }}"""
    )
    (note,) = remove_dropouts(model)
    assert note == "1 Dropout nodes were in training mode; they are removed for inference."
    assert lines(model)[-1] == "y = Sigmoid(a)"
    x = np.array([1, -2, 3, 4], np.float32)
    y, mask = run(model, x=x)
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-np.maximum(x, 0))), rtol=1e-6)
    np.testing.assert_array_equal(mask, [True] * 4)


def test_k65_fresh_names_are_checked_against_all_names() -> None:
    taken = {"b", "b_1", "c"}
    assert [fresh(name, taken) for name in ("b", "c", "c", "d")] == ["b_2", "c_1", "c_2", "d"]


def test_every_node_and_value_has_a_unique_printable_name() -> None:
    model = from_text(
        f"{HEAD} net (float[4] x) => (float[4] y) {{ a = Relu(x)\n b = Neg(a)\n y = Abs(b) }}"
    )
    nodes = list(model.graph)
    for node, name in zip(nodes, ["same", "", "same"], strict=True):
        node.name = name
    nodes[0].outputs[0].name = "bad\x00name\n"
    nodes[1].outputs[0].name = None
    fix_names(model)
    assert [node.name for node in model.graph] == ["same", "node_Neg", "same_1"]
    assert lines(model) == [
        "bad_name_ = Relu(x)",
        "node_Neg_out0 = Neg(bad_name_)",
        "y = Abs(node_Neg_out0)",
    ]
    before = lines(model)
    fix_names(model)
    assert lines(model) == before


def test_functions_are_inlined_and_constants_lifted() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21, "own" : 1]>
        net (float[4] x) => (float[4] y) { y = own.twice(x) }
        <opset_import: ["" : 21], domain: "own"> twice (a) => (b) {
          two = Constant <value = float {2.0}> ()
          b = Mul(a, two)
        }"""
    )
    lift_constants(model)
    assert not model.functions
    assert lines(model) == ["y = Mul(x, 2.0)"]


def test_inputs_with_defaults_are_told_unless_the_file_is_old() -> None:
    text = """<ir_version: {ir}, opset_import: ["" : 21]>
        net (float[4] x, float[4] w = {{1, 2, 3, 4}}) => (float[4] y) {{ y = Mul(x, w) }}"""
    for version, notes in (
        (8, ["1 inputs have a default in the file and are now constants."]),
        (3, []),
    ):
        model = from_text(text.format(ir=version))
        assert lift_constants(model) == notes
        assert [value.name for value in model.graph.inputs] == ["x"]


def test_folding_does_not_blow_up_the_file() -> None:
    model = from_text(
        f"""{HEAD} net (float[1] x) => (float[1000, 1000] y)
        <int64[2] shape = {{1000, 1000}}, float one = {{1.0}}> {{
          big = Expand(one, shape)
          fill = ConstantOfShape(shape)
          s = Add(big, fill)
          y = Add(s, x)
        }}"""
    )
    fold_constants(model)
    assert max(v.const_value.size for v in model.graph.initializers.values()) <= 2


def test_fp32_weights_of_an_fp16_conv_are_converted_as_torch_leaves_them() -> None:
    model = from_text(
        f"""{HEAD} net (float16[1, 3, 4, 4] x) => (float16[1, 4, 4, 4] y) {{ y = Conv(x, w, b) }}""",
        w=normal(4, 3, 1, 1).astype(np.float16),
        b=normal(4).astype(np.float16),
    )
    for name in ("w", "b"):
        value = model.graph.initializers[name]
        wide = value.const_value.numpy().astype(np.float32)
        value.const_value, value.dtype = ir.tensor(wide, name=name), ir.DataType.FLOAT
    (note,) = unify_constant_types(model)
    assert note.startswith("2 constants had another float type")
    run(model, x=normal(1, 3, 4, 4).astype(np.float16))


def test_static_shapes_follow_the_inputs_and_leave_the_model_alone() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, s, 8] x) => (float[b, n] y) <int64[2] flat = {{0, -1}}> {{
          r = Relu(x)
          shape = Shape(r)
          ones = ConstantOfShape(shape)
          a = Add(r, ones)
          y = Reshape(a, flat)
        }}"""
    )
    infer_shapes(model)
    known = static_shapes(model, {"x": (2, 5, 8)})
    assert {name: known[name] for name in ("x", "r", "shape", "ones", "a", "y", "flat")} == {
        "x": (2, 5, 8),
        "r": (2, 5, 8),
        "shape": (3,),
        "ones": (2, 5, 8),
        "a": (2, 5, 8),
        "y": (2, 40),
        "flat": (2,),
    }
    assert value_named(model, "r").shape == ir.Shape(["b", "s", 8])
    assert [node.op_type for node in model.graph][1] == "Shape"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ([-1, 6, 2, 4], ["b", 6, 2, 4]),
        ([0, -1], ["b", 48]),
        ([-1, 8], [None, 8]),  # 6 * b is no symbol
        ([0, 0, -1], ["b", 6, 8]),
    ],
)
def test_the_batch_is_known_behind_a_reshape(target: list[int], expected: list[object]) -> None:
    model = from_text(
        f"""{HEAD} net (float[b, 6, 8] x) => (float[p] y) {{
          r = Reshape(x, target)
          n = Relu(r)
          y = ReduceSum <keepdims = 0> (n)
        }}""",
        target=np.array(target),
    )
    infer_shapes(model)
    for name in ("r", "n"):
        shape = value_named(model, name).shape
        assert [d if isinstance(d, int) else d.value for d in shape or []] == expected


def test_an_expand_to_a_computed_shape_takes_its_symbols() -> None:
    model = from_text(
        f"""{HEAD} net (float[b, 2, 3] x, float[1, 1] m) => (float[p, q, r] y)
        <int64[1] z = {{0}}, int64[1] one = {{1}}, int64[2] rest = {{3, 1}},
         int64[2] flat = {{-1, 6}}> {{
          r = Reshape(x, flat)
          shape = Shape(r)
          batch = Slice(shape, z, one)
          target = Concat <axis = 0> (batch, rest)
          e = Expand(m, target)
          y = Neg(e)
        }}"""
    )
    infer_shapes(model)
    assert value_named(model, "e").shape == ir.Shape(["b", 3, 1])


def test_widening_keeps_every_value_and_warns_of_nothing() -> None:
    half = np.array([-65504.0, 6e-8, np.inf, 1.0], np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide = converted(ir.tensor(half, name="w"), ir.DataType.FLOAT)
    np.testing.assert_array_equal(wide.numpy(), half.astype(np.float32))
