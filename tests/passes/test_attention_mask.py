from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.passes.attention_mask import MASK_FILL, bound_attention_masks
from fuseq.passes.clean import clean_up
from tests.graphs import from_text, normal
from tests.passes.reading import lines, run, value_named

LOWEST = -3.4028234663852886e38


def _attention(mask: str, inputs: str) -> ir.Model:
    """softmax(q @ k + mask) @ v, with torch's guard behind the softmax."""
    return from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (float[2, 3, 4] q, float[2, 4, 3] k, float[2, 3, 4] v{inputs}) => (float[2, 3, 4] y)
        <float zero = {{0.0}}, float one = {{1.0}}, float low = {{{LOWEST}}}> {{
          s = MatMul(q, k)
          {mask}
          p = Softmax <axis = -1> (m)
          t = IsNaN(p)
          a = Where(t, zero, p)
          y = MatMul(a, v)
        }}"""
    )


def _qkv() -> dict[str, np.ndarray]:
    return {
        "q": normal(2, 3, 4, seed=1, scale=3),
        "k": normal(2, 4, 3, seed=2, scale=3),
        "v": normal(2, 3, 4, seed=3, scale=3),
    }


@pytest.mark.parametrize(
    "mask",
    [
        "f = Where(open, zero, low)\n m = Add(s, f)",
        "m = Where(open, s, low)",
        "c = Cast <to = 1> (open)\n i = Sub(one, c)\n f = Mul(i, low)\n m = Add(f, s)",
    ],
)
def test_a_mask_from_an_input_becomes_finite_and_the_guard_goes(mask: str) -> None:
    model = _attention(mask, ", bool[2, 1, 3] open")
    open_ = np.array([[[True, False, True]], [[False, False, True]]])
    before = run(model, open=open_, **_qkv())[0]
    notes = bound_attention_masks(model)
    clean_up(model)
    np.testing.assert_array_equal(run(model, open=open_, **_qkv())[0], before)
    assert str(MASK_FILL) in " ".join(lines(model))
    assert not [node for node in model.graph if node.op_type == "IsNaN"]
    assert notes == [
        "1 attention masks depend on the inputs: a row that is masked everywhere (an empty "
        "sequence) now gives an average instead of 0 or NaN; all other rows are unchanged."
    ]


def test_the_result_is_the_same_in_fp16_where_the_old_fill_is_not_finite() -> None:
    model = _attention("f = Where(open, zero, low)\n m = Add(s, f)", ", bool[2, 1, 3] open")
    bound_attention_masks(model)
    fill = value_named(model, "low_finite").const_value.numpy()
    assert np.isfinite(fill.astype(np.float16)) and float(fill) == MASK_FILL


@pytest.mark.parametrize("fill", [LOWEST, float("-inf"), -65504.0])
def test_a_causal_constant_is_proved_to_leave_each_row_a_position(fill: float) -> None:
    causal = np.where(np.tri(3, dtype=bool), 0.0, fill).astype(np.float32)[None]
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[2, 3, 4] q, float[2, 4, 3] k, float[2, 3, 4] v) => (float[2, 3, 4] y)
        <float zero = {0.0}> {
          s = MatMul(q, k)
          m = Add(s, causal)
          p = Softmax <axis = -1> (m)
          t = IsNaN(p)
          a = Where(t, zero, p)
          y = MatMul(a, v)
        }""",
        causal=causal,
    )
    before = run(model, **_qkv())[0]
    assert bound_attention_masks(model) == []
    clean_up(model)
    assert lines(model) == [
        "s = MatMul(q, k)",
        "m = Add(s, causal_finite)",
        "p = Softmax(m)",
        "y = MatMul(p, v)",
    ]
    np.testing.assert_array_equal(run(model, **_qkv())[0], before)


def test_a_constant_with_an_empty_row_is_told() -> None:
    mask = np.zeros((1, 3, 3), np.float32)
    mask[0, 1] = LOWEST
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[2, 3, 3] s) => (float[2, 3, 3] p) {
          m = Add(s, mask)
          p = Softmax <axis = -1> (m)
        }""",
        mask=mask,
    )
    (note,) = bound_attention_masks(model)
    assert "masked everywhere" in note


def test_two_constant_masks_are_judged_by_their_sum() -> None:
    left = np.array([[[0.0, LOWEST]]], np.float32)
    right = np.array([[[LOWEST, 0.0]]], np.float32)
    text = """<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 2, 2] q) => (float[1, 2, 2] p) {
          s = MatMul(q, q)
          a = Add(s, left)
          m = Add(a, right)
          p = Softmax <axis = -1> (m)
        }"""
    assert len(bound_attention_masks(from_text(text, left=left, right=right))) == 1
    assert bound_attention_masks(from_text(text, left=left, right=left)) == []


def test_a_float_mask_from_outside_keeps_its_guard() -> None:
    model = _attention("m = Add(s, given)", ", float[2, 1, 3] given")
    before = lines(model)
    (note,) = bound_attention_masks(model)
    assert "keep their NaN guard" in note
    assert lines(model) == before


def test_a_mask_value_that_something_else_reads_keeps_its_old_constant_there() -> None:
    model = from_text(
        f"""<ir_version: 8, opset_import: ["" : 21]>
        net (bool[1, 3] open, float[1, 3] s, float[1, 3] r) => (float[1, 3] p, float[1, 3] z)
        <float zero = {{0.0}}, float low = {{{LOWEST}}}> {{
          f = Where(open, zero, low)
          m = Add(s, f)
          p = Softmax <axis = -1> (m)
          z = Max(r, low)
        }}"""
    )
    bound_attention_masks(model)
    assert lines(model)[0] == f"f = Where(open, 0.0, {MASK_FILL})"
    assert lines(model)[3] == f"z = Max(r, {LOWEST})"


def test_numbers_that_mask_nothing_stay() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 21]>
        net (float[1, 3] s) => (float[1, 3] p) <float[3] bias = {0.5, -10000.0, -3.0}> {
          m = Add(s, bias)
          p = Softmax <axis = -1> (m)
        }"""
    )
    before = lines(model)
    assert bound_attention_masks(model) == []
    assert lines(model) == before
