"""fuseq.quantize for onnxruntime:cpu, from the float model to the kernels that run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.options import QuantizeOptions
from fuseq.quantizing import Quantized, quantize
from tests.graphs import from_text, named, normal
from tests.islands import kernels, run, sqnr_db


def _block(tail: str, second: np.ndarray | None = None, **constants: np.ndarray) -> ir.Model:
    """Two convolutions on x [n, 8, 8, 8] with a residual, and a tail that writes y."""
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 8, 8, 8] x) => (float[n, 8, a, b] y) {{
      c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
      r1 = Relu(c1)
      c2 = Conv (r1, w2)
      s = Add(c2, r1)
      {tail} }}"""
    weights = {"w1": normal(8, 8, 3, 3, seed=1, scale=0.3), "b1": normal(8, seed=2)}
    weights["w2"] = normal(8, 8, 1, 1, seed=3, scale=0.3) if second is None else second
    return named(from_text(text, **weights, **constants))


def _quantized(model: ir.Model, policy: str = "full", scale: float = 1.0) -> Quantized:
    batches = [{"x": normal(2, 8, 8, 8, seed=seed, scale=scale)} for seed in range(3)]
    options = QuantizeOptions(target="onnxruntime:cpu", policy=policy, method="max")  # type: ignore[arg-type]
    return quantize(model, calib=batches, options=options)


def test_pool_then_relu_and_a_residual_leave_one_pair_of_ends() -> None:
    model = _block("p = MaxPool <kernel_shape = [2, 2]> (s)\ny = Relu(p)")
    result = _quantized(model)
    assert kernels(result.model) == {
        "QuantizeLinear": 1,
        "Transpose": 2,
        "QLinearConv": 2,
        "QLinearAdd": 1,
        "NhwcMaxPool": 1,
        "DequantizeLinear": 1,
    }
    feeds = {"x": normal(2, 8, 8, 8, seed=9, scale=1.0)}
    assert sqnr_db(run(model, feeds), run(result.model, feeds)) > 25


def test_an_always_zero_branch_stays_in_its_island_and_is_named() -> None:
    model = _block("y = Relu(s)", np.zeros((8, 8, 1, 1), np.float32))
    result = _quantized(model)
    found = kernels(result.model)
    assert (found["QuantizeLinear"], found["QLinearConv"], found["QLinearAdd"]) == (1, 2, 1)
    assert "always 0 in calibration, so its range is taken as -1 to 1: 'c2'." in result.notes
    feeds = {"x": normal(2, 8, 8, 8, seed=9, scale=1.0)}
    assert sqnr_db(run(model, feeds), run(result.model, feeds)) > 25


def test_a_tensor_that_overflows_moves_the_ends_of_its_island() -> None:
    model = _block("e = Conv (s, w3)\ny = Relu(e)")
    model.graph.initializers["w3"] = ir.Value(
        name="w3", const_value=ir.tensor(np.full((8, 8, 1, 1), 3e38, np.float32), name="w3")
    )
    with np.errstate(over="ignore"):
        result = _quantized(named(ir.from_proto(ir.to_proto(model))), scale=4.0)
    reasons = {region.name: region.reason for region in result.plan.regions}
    assert reasons["n_e"].startswith("float: ") and "in calibration" in reasons["n_e"]
    assert {e.tensor for e in result.plan.tensors if e.region == "n_s"} == {"c2", "r1", "s"}


@pytest.mark.parametrize("policy", ["pays", "full"])
def test_the_plan_says_what_it_expects(policy: str) -> None:
    result = _quantized(_block("y = Relu(s)"), policy)
    assert any(note.startswith("measured on this machine") for note in result.notes)
    if not result.plan.tensors:
        assert kernels(result.model).get("QuantizeLinear", 0) == 0


@pytest.mark.parametrize("number", [0.37, -2.25])
def test_a_constant_number_is_stored_without_rounding(number: float) -> None:
    tail = "m = Mul(s, c)\na = Add(c, m)\nr = Relu(a)\ny = Conv <pads = [1, 1, 1, 1]> (r, w3)"
    model = _block(tail, c=np.array([number], np.float32), w3=normal(8, 8, 3, 3, seed=4))
    result = _quantized(model)
    assert kernels(result.model) == {
        "QuantizeLinear": 1,
        "Transpose": 2,
        "QLinearConv": 3,
        "QLinearAdd": 2,
        "QLinearMul": 1,
        "DequantizeLinear": 1,
    }
    for group in ("number:n_m", "number:n_a"):
        scale = result.scales[group]
        assert scale.zero_point is not None
        stored = 255.0 if number > 0 else 0.0
        assert float(scale.scale) * (stored - float(scale.zero_point)) == pytest.approx(
            number, 1e-6
        )
    feeds = {"x": normal(2, 8, 8, 8, seed=9, scale=1.0)}
    assert sqnr_db(run(model, feeds), run(result.model, feeds)) > 25
