"""An Add that LayerNormalization alone reads becomes Sum, and ONNX Runtime runs two kernels of its own."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from fuseq.passes.sum_before_norm import sums_before_norms
from tests.graphs import from_text, named, normal
from tests.islands import kernels

NORM = "LayerNormalization <axis = -1>"


def _model(body: str) -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 5, 8] x, float[n, 5, 8] z) => (float[n, 5, 8] y) {{ {body} }}"""
    return named(from_text(text, g=normal(8, seed=1), b=normal(8, seed=2)))


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        (f"a = Add(x, z) y = {NORM} (a, g, b)", ["Sum", "LayerNormalization"]),
        (f"a = Add(x, b) y = {NORM} (a, g, b)", ["Add", "LayerNormalization"]),
        (f"a = Add(x, z) l = {NORM} (a, g, b) y = Mul(a, l)", ["Add", "LayerNormalization", "Mul"]),
    ],
)
def test_values_and_operators(body: str, ops: list[str]) -> None:
    model = _model(body)
    feeds = {"x": normal(2, 5, 8, scale=1.0), "z": normal(2, 5, 8, seed=3, scale=1.0)}
    exact = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)[0]
    sums_before_norms(model)
    assert [node.op_type for node in model.graph] == ops
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    found = onnx.reference.ReferenceEvaluator(proto).run(None, feeds)[0]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def test_onnxruntime_fuses_the_add_and_not_the_sum() -> None:
    model = _model(f"p = Sigmoid(x) q = Abs(z) a = Add(p, q) y = {NORM} (a, g, b)")
    assert "SkipLayerNormalization" in kernels(model)
    sums_before_norms(model)
    found = kernels(model)
    assert (found["Sum"], found["LayerNormalization"]) == (1, 1)
