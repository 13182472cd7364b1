"""MaxPool and Relu or Clip change places where only one reads the other."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fuseq.passes.activation_before_pool import activations_before_pools
from tests.graphs import from_text, named, normal
from tests.islands import case_of, kernels, run

POOL = "MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>"


def _model(body: str, outputs: str = "float[n, 4, a, b] y") -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 4, 8, 8] x) => ({outputs})
    <float low = {{-0.5}}, float high = {{0.5}}> {{ {body} }}"""
    model = from_text(text, w=normal(4, 4, 1, 1, seed=1, scale=1.0))
    return named(model)


@pytest.mark.parametrize("activation", ["Relu(p)", "Clip(p, low, high)", "Clip(p, , high)"])
@pytest.mark.parametrize("tail", ["z = {0}\ny = Neg(z)", "y = {0}"])
def test_the_values_stay_and_the_activation_comes_first(activation: str, tail: str) -> None:
    model = _model(f"c = Conv(x, w)\np = {POOL} (c)\n{tail.format(activation)}")
    feeds = {"x": normal(2, 4, 8, 8, seed=2, scale=1.0)}
    exact = run(model, feeds)
    activations_before_pools(model)
    assert [node.op_type for node in model.graph][:3] == ["Conv", activation[:4], "MaxPool"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_array_equal(run(model, feeds), exact)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (f"c = Conv(x, w)\np = {POOL} (c)\ny = Relu(p)\nz = Neg(c)", "float[n, 4, a, b] y, float[n, 4, 8, 8] z"),
        (f"c = Conv(x, w)\np = {POOL} (c)\ny = Relu(p)\nz = Neg(p)", "float[n, 4, a, b] y, float[n, 4, a, b] z"),
        (f"p = {POOL} (x)\ny = Relu(p)", "float[n, 4, a, b] y"),
        (f"c = Conv(x, w)\np = {POOL} (c)\nh = ReduceMax(x)\ny = Clip(p, low, h)", "float[n, 4, a, b] y"),
    ],
)  # fmt: skip
def test_other_readers_and_computed_bounds_forbid_it(body: str, outputs: str) -> None:
    model = _model(body, outputs)
    before = [node.op_type for node in model.graph]
    activations_before_pools(model)
    assert [node.op_type for node in model.graph] == before


def test_the_convolution_absorbs_the_activation_afterwards() -> None:
    model = _model(f"c = Conv(x, w)\np = {POOL} (c)\nr = Relu(p)\ny = Conv(r, w)")
    activations_before_pools(model)
    case = case_of(model, {"x": normal(2, 4, 8, 8, seed=2, scale=1.0)})
    assert kernels(case.quantized) == {
        "QuantizeLinear": 1,
        "Transpose": 2,
        "QLinearConv": 2,
        "NhwcMaxPool": 1,
        "DequantizeLinear": 1,
    }
