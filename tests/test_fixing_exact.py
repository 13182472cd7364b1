"""fix keeps every bit of a scale where that costs nothing, and says what it rounds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.fixing import fix
from fuseq.options import QuantizeOptions
from tests.graphs import from_text, named
from tests.quantized_nets import HEAD, RTX, TRT, naive_block, scales_at

FOLDER = Path(__file__).parent / "data" / "fix_corpus"


def test_convolutions_keep_scales_that_fp16_would_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    model = naive_block()
    wide = np.float32(0.0123456)
    model.graph.initializers["s1"].const_value = ir.tensor(np.asarray(wide))
    result = fix(model, options=RTX)
    assert scales_at(result.model)["n_c2[0]"] == wide
    assert result.model.opset_imports[""] == 23
    ir.save(result.model, tmp_path / "once.onnx")
    again = fix(tmp_path / "once.onnx", options=RTX)
    assert scales_at(again.model) == scales_at(result.model)


def test_a_target_that_was_not_seen_to_take_them_gets_rounded_ones() -> None:
    model = naive_block()
    wide = np.float32(0.0123456)
    model.graph.initializers["s1"].const_value = ir.tensor(np.asarray(wide))
    result = fix(model, options=TRT)
    assert scales_at(result.model)["n_c2[0]"] == np.float32(np.float16(wide))
    assert result.model.opset_imports[""] == 21


def _channels(size: int) -> ir.Model:
    """One convolution with weight scales a channel; small ones gain less than 2 % by INT8."""
    text = f"""{HEAD}
    net (float[1, {size}, 32, 32] x) => (float[1, {size}, 32, 32] y) <float s = {{0.01}}, int8 z = {{0}}> {{
      r = Relu(x)
      q = QuantizeLinear(r, s, z)
      d = DequantizeLinear(q, s, z)
      e = DequantizeLinear <axis = 0> (w, t)
      c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, e)
      y = Relu(c)
    }}"""
    rng = np.random.default_rng(1)
    weight = rng.integers(-127, 128, (size, size, 3, 3)).astype(np.int8)
    weight.reshape(size, -1)[:, 0] = 127
    scale = rng.uniform(0.009, 0.01, size).astype(np.float32)
    return named(from_text(text, w=weight, t=scale))


@pytest.mark.parametrize(("least", "rounded"), [(10.0, False), (-1.0, True)])
def test_a_weight_is_rounded_again_only_for_a_gain(
    least: float, rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    from fuseq import fixing_channels  # noqa: PLC0415

    monkeypatch.setattr(fixing_channels, "SLACK", 0.0)  # scales a channel are not kept
    monkeypatch.setattr(fixing_channels, "MIN_GAIN", least)
    options = QuantizeOptions(target="tensorrt-rtx:sm89", batch=1)
    result = fix(_channels(512), options=options)
    actions = {change.action for change in result.changes if change.kind == "weight"}
    assert ("rescaled" in actions) == rounded
    full = fix(_channels(512), options=dataclasses.replace(options, policy="full"))
    assert full.plan.tensors
