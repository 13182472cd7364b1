"""Equalization leaves the function as it is and brings one scale nearer to one a channel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.calibration.batches import Source
from fuseq.calibration.refine import refine
from fuseq.calibration.rounding import quantize_array
from fuseq.calibration.scales import Scale
from fuseq.evaluate.running import run_all
from fuseq.formats import INT8
from fuseq.options import QuantizeOptions
from fuseq.passes.equalize import equalize
from fuseq.passes.set_constants import set_constants
from fuseq.placement.channel_classes import channel_classes
from fuseq.placement.plan import Plan, QuantizedTensor, Use
from fuseq.planning import open_job
from tests.graphs import from_text, named, normal


def mobile_block(act: str = "Relu", out: str = "y") -> ir.Model:
    """Expand 1x1, depthwise 3x3, project 1x1, with channels whose ranges differ a thousandfold."""
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[2, 16, 12, 12] x) => (float[2, 24, 12, 12] y) <float low = {{0.0}}, float six = {{6.0}}> {{
      e = Conv (x, we, be)
      e1 = {act}
      d = Conv <group = 32, pads = [1, 1, 1, 1]> (e1, wd, bd)
      d1 = Relu(d)
      y = Conv (d1, wp) }}"""
    spread = np.exp(np.random.default_rng(9).uniform(-3.5, 3.5, 32)).astype(np.float32)
    weights = {
        "we": normal(32, 16, 1, 1, seed=1) * spread[:, None, None, None],
        "be": normal(32, seed=2) * spread,
        "wd": normal(32, 1, 3, 3, seed=3) * spread[::-1, None, None, None],
        "bd": normal(32, seed=4),
        "wp": normal(24, 32, 1, 1, seed=5),
    }
    return named(from_text(text, **weights))


X = [{"x": normal(2, 16, 12, 12, seed=6, scale=1.0)}]


def _sqnr_db(model: ir.Model, exact: np.ndarray, axis: int | None) -> float:
    """With all weights rounded to INT8: one scale, or one an output channel."""
    rounded = model.clone()
    for name in ("we", "wd", "wp"):
        value = rounded.graph.initializers[name]
        assert value.const_value is not None
        array = value.const_value.numpy()
        over = tuple(range(1, array.ndim)) if axis == 0 else None
        scale = np.asarray(np.abs(array).max(axis=over) / 127, np.float32)
        steps = quantize_array(array, scale, None, INT8, axis=axis).astype(np.float32)
        wide = scale.reshape(-1, *[1] * (array.ndim - 1)) if axis == 0 else scale
        value.const_value = ir.tensor(steps * wide, name=name)
    noise = np.square(run_all(rounded, X) - exact).sum()
    return float(10 * np.log10(np.square(exact).sum() / noise))


def test_outputs_stay_to_1e5() -> None:
    model = mobile_block("Relu(e)")
    before = run_all(model, X)
    (note,) = equalize(model)
    assert note.nodes == ("n_e", "n_d", "n_y")
    after = run_all(model, X)
    assert np.abs(after - before).max() <= 1e-5 * np.abs(before).max()


def test_one_scale_comes_nearer_to_one_a_channel() -> None:
    """31.3 dB with one scale, 41.2 with one a channel; 38.7 with one scale after equalization (37.4
    with both ranges made equal)."""
    model = mobile_block("Relu(e)")
    exact = run_all(model, X)
    channel, tensor = _sqnr_db(model, exact, 0), _sqnr_db(model, exact, None)
    assert tensor < channel - 9
    equalize(model)
    assert _sqnr_db(model, exact, None) > max(channel - 2.7, tensor + 7)


def _ends(model: ir.Model) -> list[tuple[list[str | None], list[str | None]]]:
    return [
        ([layer.node.name for layer in found.writers], [layer.node.name for layer in found.readers])
        for found in channel_classes(model.graph)
    ]


def _residual(add: str = "Add(p, x1)") -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[2, 8, 6, 6] x) => (float[2, 5] y)
    <float[2, 16, 6, 6] x1, float[2, 16, 6, 6] p, float[2, 16, 6, 6] s, float[2, 16, 1, 1] g,
     float[2, 16] f> {{
      x1 = Conv (x, w0, b0)
      a = Conv (x1, w1)
      r = Relu(a)
      p = Conv (r, w2)
      s = {add}
      g = GlobalAveragePool(s)
      f = Flatten(g)
      y = Gemm <transB = 1> (f, w3) }}"""
    spread = np.geomspace(0.01, 10, 16).astype(np.float32)[:, None, None, None]
    return named(
        from_text(
            text, w0=normal(16, 8, 1, 1, seed=1) * spread, b0=normal(16, seed=2),
            w1=normal(24, 16, 1, 1, seed=3), w2=normal(16, 24, 1, 1, seed=4) * spread,
            w3=normal(5, 16, seed=5),
        )
    )  # fmt: skip


def test_a_residual_stream_is_one_set_and_outputs_stay() -> None:
    model = _residual()
    assert _ends(model) == [(["n_x1", "n_p"], ["n_a", "n_y"]), (["n_a"], ["n_p"])]
    data = [{"x": normal(2, 8, 6, 6, seed=3, scale=1.0)}]
    before = run_all(model, data)
    assert equalize(model)
    assert np.abs(run_all(model, data) - before).max() <= 1e-5 * np.abs(before).max()
    assert _ends(_residual("Mul(p, x1)")) == [(["n_a"], ["n_p"])]


@pytest.mark.parametrize("act", ["Clip(e, low, six)", "Sigmoid(e)"])
def test_what_is_not_homogeneous_is_left_alone(act: str) -> None:
    assert _ends(mobile_block(act)) == [(["n_d"], ["n_y"])]


def test_a_tensor_that_others_read_and_a_shared_weight_are_left_alone() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[2, 8] x) => (float[2, 8] y, float[2, 8] z) {
      a = MatMul(x, w0)
      r = Relu(a)
      y = MatMul(r, w1)
      b = MatMul(y, w2)
      z = MatMul(b, w2) }"""
    model = from_text(text, **{f"w{n}": normal(8, 8, seed=n) for n in range(3)})
    assert _ends(named(model)) == [(["n_a"], ["n_y"])]


def test_grouped_and_transposed_weights() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[2, 8, 5, 5] x) => (float[2, 12, 5, 5] y) {
      a = Conv <group = 2> (x, w0, b0)
      r = LeakyRelu(a)
      y = Conv <group = 4> (r, w1) }"""
    spread = np.geomspace(0.01, 10, 16).astype(np.float32)[:, None, None, None]
    model = from_text(
        text, w0=normal(16, 4, 1, 1, seed=1) * spread, b0=normal(16, seed=2), w1=normal(12, 4, 1, 1)
    )
    data = [{"x": normal(2, 8, 5, 5, seed=3, scale=1.0)}]
    before = run_all(model, data)
    assert equalize(model)
    np.testing.assert_allclose(run_all(model, data), before, atol=1e-5 * np.abs(before).max())


def test_gemms_with_transposed_weights() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[4, 6] x) => (float[4, 5] y) {
      a = Gemm <transB = 1> (x, w0, b0)
      r = Relu(a)
      y = Gemm <transB = 1> (r, w1) }"""
    spread = np.geomspace(0.01, 10, 9).astype(np.float32)
    model = from_text(
        text, w0=normal(9, 6, seed=1) * spread[:, None], b0=normal(9, seed=2), w1=normal(5, 9)
    )
    data = [{"x": normal(4, 6, seed=3, scale=1.0)}]
    before = run_all(model, data)
    assert equalize(model)
    np.testing.assert_allclose(run_all(model, data), before, atol=1e-5 * np.abs(before).max())


def test_nothing_to_equalize_says_nothing() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[4, 6] x) => (float[4, 6] y) { y = Relu(x) }"""
    assert equalize(from_text(text)) == []


def test_a_bound_for_all_channels_is_told() -> None:
    notes = equalize(mobile_block("Clip(e, low, six)"))
    assert [note.nodes for note in notes] == [("n_d", "n_y"), ("n_e",)]
    assert "Clip or ReLU6" in notes[1].text


def test_the_option_equalizes_before_planning_and_outputs_stay() -> None:
    options = QuantizeOptions(target="tensorrt-rtx:sm89", equalize=True, batch=2)
    job = open_job(mobile_block("Relu(e)"), options)
    assert "equalized 2 sets of channels between 3 layers." in job.notes
    before = run_all(mobile_block("Relu(e)"), X)
    assert np.abs(run_all(job.model, X) - before).max() <= 1e-5 * np.abs(before).max()
    plain = open_job(mobile_block("Relu(e)"), QuantizeOptions(target="tensorrt-rtx:sm89", batch=2))
    names = [name for name, value in plain.model.graph.initializers.items() if value.uses()]
    assert any(
        not np.array_equal(
            plain.model.graph.initializers[name].const_value.numpy(),  # type: ignore[union-attr]
            job.model.graph.initializers[name].const_value.numpy(),  # type: ignore[union-attr]
        )
        for name in names
    )


def _second_order_db(model: ir.Model, axis: int | None) -> float:
    """With all weights rounded by second order on other data than those that are judged."""
    scales: dict[str, Scale] = {}
    entries = []
    for node in model.graph:
        if node.op_type != "Conv":
            continue
        name = node.inputs[1].name or ""  # type: ignore[union-attr]
        array = model.graph.initializers[name].const_value.numpy()  # type: ignore[union-attr]
        over = None if axis is None else tuple(range(1, array.ndim))
        scales[name] = Scale(INT8.scale_of(np.abs(array).max(axis=over)), None, "int8", axis)
        use = (Use(node.name or "", 1),)
        entries.append(QuantizedTensor(name, "weight", "int8", axis, name, use, name, ""))
    plan = Plan("tensorrt-rtx:sm89", "int8", "fp32", "full", "", tuple(entries), ())
    data = [{"x": normal(2, 16, 12, 12, seed=seed, scale=1.0)} for seed in range(20, 24)]
    found = refine(
        model, plan, scales, Source("", lambda: iter(data)), second_order=True,
        bias_correction=False,
    )  # fmt: skip
    assert len(found.values) == 3
    rounded = model.clone()
    set_constants(rounded, found.values)
    exact = run_all(model, X)
    return float(
        10 * np.log10(np.square(exact).sum() / np.square(run_all(rounded, X) - exact).sum())
    )


def test_second_order_rounding_comes_nearer_still_on_data_it_has_not_seen() -> None:
    """41.2 dB with one scale a channel, to nearest; equalized with one scale: 38.7 to nearest, 39.7 by
    second order."""
    model = mobile_block("Relu(e)")
    channel = _sqnr_db(model, run_all(model, X), 0)
    equalize(model)
    found = _second_order_db(model, None)
    assert found > _sqnr_db(model, run_all(model, X), None) + 0.9
    assert found > channel - 1.7
