"""HardSwish and HardSigmoid between integer pairs, against the formulas."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.passes.integer_activations import write_hard_activations
from tests.graphs import from_text, named, normal
from tests.islands import case_of, kernels, run


def _model(call: str, dims: str = "n, 4, 6, 6") -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[{dims}] x) => (float[{dims}] y) {{ y = {call} }}"""
    return named(from_text(text))


@pytest.mark.parametrize(
    ("call", "alpha", "beta", "found"),
    [
        ("HardSigmoid(x)", 0.2, 0.5, {"QLinearConv": 1}),
        ("HardSigmoid <alpha = 0.1666667, beta = 0.4> (x)", 1 / 6, 0.4, {"QLinearConv": 1}),
        ("HardSwish(x)", 1 / 6, 0.5, {"QLinearConv": 1, "QLinearMul": 1}),
    ],
)
def test_the_gate_is_right_within_a_step(
    call: str, alpha: float, beta: float, found: dict[str, int]
) -> None:
    model = _model(call)
    feeds = {"x": np.linspace(-8, 8, 2 * 4 * 36, dtype=np.float32).reshape(2, 4, 6, 6)}
    case = case_of(model, feeds)
    gate = np.clip(alpha * feeds["x"].astype(np.float64) + beta, 0, 1)
    expected = gate * feeds["x"] if "Swish" in call else gate
    got = kernels(case.quantized)
    assert {name: got.get(name, 0) for name in found} == found
    assert not {"HardSwish", "HardSigmoid", "Clip", "Conv", "Mul"} & set(got)
    step_in, step_out = (float(case.scales[name].scale) for name in ("x", "y"))
    slope = 1.5 if "Swish" in call else alpha
    worst = slope * step_in / 2 + 8 * (0.5 / 255 + 1e-3) * ("Swish" in call) + step_out
    assert np.abs(run(case.quantized, feeds) - expected).max() <= worst


def test_in_float_and_without_channels_they_stay() -> None:
    model = _model("HardSwish(x)")
    write_hard_activations(model)
    assert [node.op_type for node in model.graph] == ["HardSwish"]
    flat = _model("HardSwish(x)", "n, 4")
    case = case_of(flat, {"x": normal(2, 4)})
    assert case.reason("n_y") == (
        "float: the channels or the rank of its input are unknown, or it has no image axes"
    )
