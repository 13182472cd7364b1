from __future__ import annotations

import numpy as np
import pytest

from fuseq.passes.attention_op import split_attention
from tests.graphs import from_text, normal
from tests.passes.reading import ops, run, run_reference

HEAD = '<ir_version: 10, opset_import: ["" : 23]>'


@pytest.mark.parametrize(
    ("inputs", "operands", "attributes", "shapes"),
    [
        ("", "", "", {}),
        (", float[2, 1, 5, 7] m", ", m", "<scale = 0.3>", {"m": (2, 1, 5, 7)}),
        ("", "", "<is_causal = 1>", {}),
    ],
)
def test_four_dimensional_attention_is_its_parts(
    inputs: str, operands: str, attributes: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 3, 5, 4] q, float[2, 3, 7, 4] k, float[2, 3, 7, 4] v{inputs})
            => (float[2, 3, 5, 4] y) {{ y = Attention {attributes} (q, k, v{operands}) }}"""
    )
    feeds = {
        "q": normal(2, 3, 5, 4, seed=1, scale=1),
        "k": normal(2, 3, 7, 4, seed=2, scale=1),
        "v": normal(2, 3, 7, 4, seed=3, scale=1),
        **{name: normal(*shape, seed=4, scale=1) for name, shape in shapes.items()},
    }
    before = run_reference(model, **feeds)[0]
    assert split_attention(model) == []
    assert "Attention" not in ops(model) and ops(model)[-1] == "MatMul"
    np.testing.assert_allclose(run(model, **feeds)[0], before, rtol=1e-5, atol=1e-6)


def test_a_boolean_mask_and_grouped_heads_in_three_dimensions() -> None:
    model = from_text(
        f"""{HEAD} net (float[2, 5, 16] q, float[2, 7, 8] k, float[2, 7, 8] v, bool[5, 7] m)
            => (float[2, 5, 16] y) {{
              y = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, m)
            }}"""
    )
    open_ = np.tri(5, 7, 2, dtype=bool)
    feeds = {
        "q": normal(2, 5, 16, seed=1, scale=1),
        "k": normal(2, 7, 8, seed=2, scale=1),
        "v": normal(2, 7, 8, seed=3, scale=1),
        "m": open_,
    }
    expected = _by_hand(feeds["q"], feeds["k"], feeds["v"], open_)
    assert split_attention(model) == []
    np.testing.assert_allclose(run(model, **feeds)[0], expected, rtol=1e-5, atol=1e-6)


def _by_hand(q: np.ndarray, k: np.ndarray, v: np.ndarray, open_: np.ndarray) -> np.ndarray:
    """Grouped attention in float64: two Q heads share one K and V head."""
    heads = q.astype(np.float64).reshape(2, 5, 4, 4).transpose(0, 2, 1, 3)
    keys, values = (
        np.repeat(x.astype(np.float64).reshape(2, 7, 2, 4).transpose(0, 2, 1, 3), 2, axis=1)
        for x in (k, v)
    )
    scores = heads @ keys.transpose(0, 1, 3, 2) / 2
    weights = np.where(open_, np.exp(scores), 0)
    weights /= weights.sum(-1, keepdims=True)
    return (weights @ values).transpose(0, 2, 1, 3).reshape(2, 5, 16)


@pytest.mark.parametrize(
    ("shape", "attributes", "reason"),
    [
        ("2, 3, s, 4", "<is_causal = 1>", "causal over lengths"),
        ("2, 3, 5, 4", "<softcap = 1.0>", "capped"),
        ("2, 5, 4", "", "number of heads"),
    ],
)
def test_what_has_no_plain_parts_stays_with_a_note(
    shape: str, attributes: str, reason: str
) -> None:
    model = from_text(
        f"""{HEAD} net (float[{shape}] q, float[{shape}] k, float[{shape}] v)
            => (float[{shape}] y) {{ y = Attention {attributes} (q, k, v) }}"""
    )
    (note,) = split_attention(model)
    assert reason in note and "stays one operator" in note
    assert ops(model) == ["Attention"]
