"""MatMul with a bias becomes Gemm between reshapes, whatever dimensions are symbolic."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fuseq.passes.integer_form import to_integer_form
from fuseq.passes.linear_gemm import linears_to_gemms
from tests.graphs import from_text, named, normal
from tests.islands import run


def _model(dims: str, add: str = "Add(p, b)", bias: tuple[int, ...] = (5,)) -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[{dims}, 3] x) => (float[{dims}, 5] y)
    {{ l = Abs(x)  p = MatMul(l, w)  y = {add} }}"""
    return named(from_text(text, w=normal(3, 5, seed=1), b=normal(*bias, seed=2)))


@pytest.mark.parametrize(
    ("dims", "shape", "ops"),
    [
        ("2, 4", (2, 4, 3), ["Abs", "Reshape", "Gemm", "Reshape"]),
        ("n, 4", (3, 4, 3), ["Abs", "Reshape", "Gemm", "Reshape"]),
        ("2, t, 2", (2, 7, 2, 3), ["Abs", "Reshape", "Gemm", "Reshape"]),
        ("n, t", (3, 7, 3), ["Shape", "Concat", "Abs", "Reshape", "Gemm", "Reshape"]),
    ],
)
@pytest.mark.parametrize("add", ["Add(p, b)", "Add(b, p)"])
def test_values_stay_for_every_kind_of_shape(
    dims: str, shape: tuple[int, ...], ops: list[str], add: str
) -> None:
    model = _model(dims, add)
    feeds = {"x": normal(*shape, seed=3, scale=1.0)}
    exact = run(model, feeds)
    linears_to_gemms(model)
    assert [node.op_type for node in model.graph] == ops
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, feeds), exact, rtol=1e-6, atol=1e-6)


def test_layers_of_one_width_share_the_computed_shape() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, t, 4] x) => (float[n, t, 4] y) {
      p = MatMul(x, w)  q = Add(p, b)  r = MatMul(q, w)  y = Add(r, b) }"""
    model = named(from_text(text, w=normal(4, 4), b=normal(4, seed=1)))
    to_integer_form(model)
    ops = [node.op_type for node in model.graph]
    assert (ops.count("Shape"), ops.count("Concat"), ops.count("Gemm")) == (1, 1, 2)
    names = [node.name for node in model.graph]
    assert len(set(names)) == len(names)
    values = [value.name for node in model.graph for value in node.outputs]
    assert None not in values and len(set(values)) == len(values)


@pytest.mark.parametrize("bias", [(1, 1, 5), (1,)])
def test_a_bias_of_another_shape_stays(bias: tuple[int, ...]) -> None:
    model = _model("n, 4", bias=bias)
    linears_to_gemms(model)
    assert [node.op_type for node in model.graph] == ["Abs", "MatMul", "Add"]


def test_unknown_dimensions_stay() -> None:
    model = _model("n, t")
    model.graph[0].outputs[0].shape = ir.Shape([None, None, 3])
    linears_to_gemms(model)
    assert [node.op_type for node in model.graph] == ["Abs", "MatMul", "Add"]
