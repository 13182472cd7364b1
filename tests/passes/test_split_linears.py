"""A product that Split cuts becomes a product a part; whatever else reads it keeps it whole."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from fuseq.passes.split_linears import split_linears
from tests.graphs import from_text, named, normal


def _model(body: str) -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 5, 4] x) => (float[n, 5, k] y)
    <int64[3] sizes = {{2, 3, 1}}> {{ p = MatMul(x, w) {body} }}"""
    return named(from_text(text, w=normal(4, 6, seed=1), b=normal(6, seed=2)))


TAIL = "s = Sigmoid(q) y = Concat <axis = -1> (s, k, v)"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"a = Add(p, b) q, k, v = Split <axis = -1> (a, sizes) {TAIL}",
         ["MatMul", "Add", "MatMul", "Add", "MatMul", "Add", "Sigmoid", "Concat"]),
        (f"a = Add(b, p) q, k, v = Split <axis = 2, num_outputs = 3> (a) {TAIL}",
         ["MatMul", "Add", "MatMul", "Add", "MatMul", "Add", "Sigmoid", "Concat"]),
        (f"q, k, v = Split <axis = -1> (p, sizes) {TAIL}",
         ["MatMul", "MatMul", "MatMul", "Sigmoid", "Concat"]),
        ("q, k, v = Split <axis = 1, num_outputs = 3> (p) s = Sigmoid(q) y = Concat <axis = 1> (s, k, v)",
         ["MatMul", "Split", "Sigmoid", "Concat"]),
        ("q, k, v = Split <axis = -1> (p, sizes) r = Neg(p) y = Concat <axis = -1> (q, k, v, r)",
         ["MatMul", "Split", "Neg", "Concat"]),
    ],
)  # fmt: skip
def test_values_and_operators(body: str, left: list[str]) -> None:
    model = _model(body)
    x = normal(2, 5, 4, scale=1.0)
    exact = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0]
    split_linears(model)
    assert [node.op_type for node in model.graph] == left
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    found = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
    names = {value.name for node in model.graph for value in node.outputs}
    assert {"q", "k", "v"} <= names
