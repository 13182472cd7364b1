"""A scalar factor or shift in front of convolutions goes into their weights and biases, or stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from fuseq.passes.affine_into_conv import affines_into_convs
from tests.graphs import from_text, named, normal

PADDED = "Conv <pads = [1, 1, 1, 1]>"
BARE = "Conv"


def _model(body: str, **numbers: float) -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 4, 6, 6] x) => (float[n, 4, h, w] y) {{ h = HardSwish(x) {body} }}"""
    arrays = {name: np.array([number], np.float32) for name, number in numbers.items()}
    arrays["w"], arrays["b"] = normal(4, 4, 3, 3, seed=1), normal(4, seed=2)
    return named(from_text(text, **arrays))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"m = Mul(h, c) s = Add(m, d) y = {PADDED} (s, w, b)", ["Add", "Conv"]),
        (f"m = Mul(c, h) s = Add(d, m) y = {BARE} (s, w, b)", ["Conv"]),
        (f"m = Mul(h, c) s = Add(m, d) y = {BARE} (s, w)", ["Conv"]),
        (f"m = Mul(h, c) y = {PADDED} (m, w, b)", ["Conv"]),
        (f"s = Add(h, d) y = {PADDED} (s, w, b)", ["Add", "Conv"]),
        (f"m = Mul(h, c) p = {BARE} (m, w) q = {BARE} (m, w, b) y = Add(p, q)", ["Conv", "Conv", "Add"]),
        (f"m = Mul(h, c) p = {PADDED} (m, w) y = Add(p, m)", ["Mul", "Conv", "Add"]),
        (f"s = Add(h, d) p = {BARE} (s, w) q = {PADDED} (s, w) k = MaxPool <kernel_shape = [3, 3]> (q) y = Add(p, k)",
         ["Add", "Conv", "Conv", "MaxPool", "Add"]),
    ],
)  # fmt: skip
def test_values_stay_and_scalars_go(body: str, left: list[str]) -> None:
    model = _model(body, c=-1.75, d=0.6)
    x = normal(2, 4, 6, 6, scale=2.0)
    exact = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0]
    affines_into_convs(model)
    assert [node.op_type for node in model.graph] == ["HardSwish", *left]
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    found = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [0.0, float("inf"), 1e-45])
def test_a_factor_that_cannot_be_divided_by_stays(factor: float) -> None:
    model = _model(f"m = Mul(h, c) s = Add(m, d) y = {PADDED} (s, w, b)", c=factor, d=0.6)
    affines_into_convs(model)
    assert [node.op_type for node in model.graph] == ["HardSwish", "Mul", "Add", "Conv"]
