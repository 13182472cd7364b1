"""Ranges carried from tensor to tensor: each rule of the table, and what must not carry."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.calibration.carried_ranges import Carried, find_range
from fuseq.calibration.kept_scales import stored_scale
from fuseq.calibration.ranges import Range
from tests.graphs import from_text, named, normal


def _find(body: str, wanted: str, known: dict[str, tuple[float, float]]) -> Carried | None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[1, 8, 4, 4] x, float[1, 8, 4, 4] z) => (float[a, b, c, d] y)
    <float two = {{2.0}}, float low = {{-1.0}}, float high = {{6.0}}, int64[2] flat = {{1, 128}},
     float[4] by = {{1.0, 1.0, 2.0, 2.0}}, int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}},
     int64[2] halves = {{4, 4}}>
    {{ {body} }}"""
    model = named(from_text(text, w=normal(8, 8, 1, 1)))
    values = {v.name: v for v in model.graph.inputs}
    values |= {v.name: v for n in model.graph for v in n.outputs}
    ranges = {name: Carried(Range(*ends)) for name, ends in known.items()}
    return find_range(values[wanted], ranges)


CONV = "Conv <kernel_shape = [1, 1]>"


@pytest.mark.parametrize(
    ("body", "wanted", "known", "expected", "certainty"),
    [
        ("y = Relu(x)", "x", {"x": (-3, 5)}, (-3, 5), "same"),
        ("r = Reshape(x, flat) y = Relu(r)", "r", {"x": (-3, 5)}, (-3, 5), "same"),
        ("r = Reshape(x, flat) y = Relu(r)", "x", {"r": (-3, 5)}, (-3, 5), "same"),
        ("t = Transpose(x) y = Relu(t)", "x", {"t": (-3, 5)}, (-3, 5), "same"),
        ("y = Relu(x)", "y", {"x": (-3, 5)}, (0, 5), "same"),
        ("y = Relu(x)", "x", {"y": (-5, 5)}, (-5, 5), "same"),
        ("y = Clip(x, low, high)", "y", {"x": (-3, 50)}, (-1, 6), "same"),
        ("y = LeakyRelu <alpha = 0.1> (x)", "y", {"x": (-30, 5)}, (-3, 5), "same"),
        ("y = MaxPool <kernel_shape = [2, 2]> (x)", "y", {"x": (-3, 5)}, (-3, 5), "same"),
        ("r = Relu(x) y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)", "r",
         {"y": (-5, 5)}, (-5, 5), "same"),
        ("y = Resize <mode = \"nearest\"> (x, , by)", "y", {"x": (-3, 5)}, (-3, 5), "same"),
        ("y = Pad(x, pads)", "y", {"x": (1, 5)}, (0, 5), "same"),
        ("y = Sigmoid(x)", "y", {}, (0, 1), "same"),
        ("y = Softmax(x)", "y", {}, (0, 1), "same"),
        ("y = Tanh(x)", "y", {}, (-1, 1), "same"),
        ("y = Gelu(x)", "y", {"x": (-3, 5)}, (-0.17, 5), "same"),
        ("g = Sigmoid(x) y = Mul(x, g)", "y", {"x": (-3, 5)}, (-3, 5), "bound"),
        ("y = Add(x, z)", "y", {"x": (-3, 5), "z": (-1, 2)}, (-4, 7), "bound"),
        ("y = Sub(x, z)", "y", {"x": (-3, 5), "z": (-1, 2)}, (-5, 6), "bound"),
        ("y = Mul(x, two)", "y", {"x": (-3, 5)}, (-6, 10), "bound"),
        ("y = Mul(x, two)", "x", {"y": (-6, 10)}, (-3, 5), "same"),
        ("y = Concat <axis = 1> (x, z)", "y", {"x": (-3, 5), "z": (-9, 2)}, (-9, 5), "same"),
        ("y = Concat <axis = 1> (x, z)", "x", {"y": (-9, 5)}, (-9, 5), "same"),
        ("a, b = Split <axis = 1> (x, halves) y = Add(a, b)", "x", {"a": (-1, 5), "b": (-2, 1)},
         (-2, 5), "same"),
        ("s = Add(x, z) y = Relu(s)", "x", {"y": (-5, 5)}, (-5, 5), "estimate"),
        ("s = Add(x, z) y = Relu(s)", "z", {"s": (-3, 7)}, (-7, 7), "estimate"),
    ],
)  # fmt: skip
def test_what_carries(
    body: str,
    wanted: str,
    known: dict[str, tuple[float, float]],
    expected: tuple[float, float],
    certainty: str,
) -> None:
    found = _find(body, wanted, known)
    assert found is not None
    assert (found.range.minimum, found.range.maximum) == pytest.approx(expected, abs=1e-6)
    assert found.certainty == certainty
    assert bool(found.how) == (wanted not in known)


@pytest.mark.parametrize(
    ("body", "wanted", "known"),
    [
        (f"y = {CONV} (x, w)", "y", {"x": (-3, 5)}),  # a sum of products: too loose to be of use
        (f"y = {CONV} (x, w)", "x", {"y": (-3, 5)}),
        ("y = MaxPool <kernel_shape = [2, 2], strides = [3, 3]> (x)", "x", {"y": (-3, 5)}),
        ("y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)", "x", {"y": (-3, 5)}),
        ("a, b = Split <axis = 1> (x, halves) y = Add(a, b)", "x", {"a": (-1, 5)}),
        ("y = Concat <axis = 1> (x, z)", "y", {"x": (-3, 5)}),
        ("r = Relu(x) y = Add(r, x)", "x", {"r": (0, 5)}),  # the Add reads the negative side
        ("y = Resize <mode = \"cubic\"> (x, , by)", "y", {"x": (-3, 5)}),
        ("y = GlobalAveragePool(x)", "y", {"x": (-3, 5)}),
        ("s = Add(x, x) t = Mul(s, x) y = Mul(t, x)", "y", {"x": (-3, 5)}),  # a bound of bounds
    ],
)  # fmt: skip
def test_what_does_not_carry(body: str, wanted: str, known: dict[str, tuple[float, float]]) -> None:
    assert _find(body, wanted, known) is None


def test_a_long_graph_is_walked_once() -> None:
    chain = " ".join(f"v{i + 1} = Add(v{i}, v{i})" for i in range(3000))
    body = f"v0 = Reshape(x, flat) {chain} y = Relu(v3000)"
    assert _find(body, "v1500", {"x": (-3, 5)}) is None


def test_scales_keep_their_bits_in_the_type_that_stores_them() -> None:
    exact = np.asarray([0.5, np.float16(0.0123), np.float16(2e-6)], np.float32)
    np.testing.assert_array_equal(stored_scale(exact, "fp16"), exact)
    np.testing.assert_array_equal(stored_scale(exact, "fp32"), exact)
    rounded = stored_scale(np.asarray(0.01, np.float32), "fp16")
    assert rounded == np.float32(np.float16(0.01))
    tiny = stored_scale(np.asarray(1e-9, np.float32), "fp16")
    assert tiny == np.float32(2.0**-14)


def test_rounding_a_scale_to_fp16_moves_no_integer() -> None:
    scales = np.random.default_rng(0).uniform(2.0**-14, 1, 2000).astype(np.float32)
    integers = np.arange(-127, 128, dtype=np.float32)
    halves = stored_scale(scales, "fp16")
    again = np.rint((integers[None] * scales[:, None]) / halves[:, None])
    np.testing.assert_array_equal(again, np.broadcast_to(integers, again.shape))


def test_values_of_another_domain_do_not_carry() -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
            g (float[1, 8] x) => (float[1, 8] y) { y = my.Relu(x) }"""
        )
    )
    value: ir.Value = model.graph.outputs[0]
    assert find_range(value, {"x": Carried(Range(-1, 1))}) is None
