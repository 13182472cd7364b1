"""ReduceMean over the image axes becomes GlobalAveragePool; every other ReduceMean stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from fuseq.passes.image_means import means_to_pools
from tests.graphs import from_text, named, normal


def _model(
    call: str, shape: str = "n, 3, 4, 5", opset: int = 21, out: str = "float[a, b] y"
) -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : {opset}]>
    net (float[{shape}] x) => ({out})
    <int64[2] image = {{2, 3}}, int64[2] back = {{-1, -2}}, int64[1] width = {{3}}, int64[3] all3 = {{2, 3, 4}}>
    {{ y = {call} }}"""
    return named(from_text(text))


@pytest.mark.parametrize(
    ("call", "shape", "ops"),
    [
        ("ReduceMean <keepdims = 1> (x, image)", (2, 3, 4, 5), ["GlobalAveragePool"]),
        ("ReduceMean (x, back)", (2, 3, 4, 5), ["GlobalAveragePool"]),
        ("ReduceMean <keepdims = 0> (x, image)", (2, 3, 4, 5), ["GlobalAveragePool", "Flatten"]),
        ("ReduceMean <keepdims = 0> (x, all3)", (2, 3, 2, 3, 2), ["GlobalAveragePool", "Flatten"]),
        ("ReduceMean (x, width)", (2, 3, 4, 5), ["ReduceMean"]),
        ("ReduceMean (x)", (2, 3, 4, 5), ["ReduceMean"]),
    ],
)
def test_values_and_operators(call: str, shape: tuple[int, ...], ops: list[str]) -> None:
    dims = ", ".join(map(str, ("n", *shape[1:])))
    rank = 2 if "keepdims = 0" in call else len(shape)
    model = _model(call, dims, out=f"float[{', '.join('abcde'[:rank])}] y")
    x = normal(*shape, scale=1.0)
    exact = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0]
    means_to_pools(model)
    assert [node.op_type for node in model.graph] == ops
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    found = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
    assert found.shape == exact.shape
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def test_axes_as_an_attribute() -> None:
    model = _model("ReduceMean <axes = [2, 3]> (x)", opset=13, out="float[a, b, c, d] y")
    means_to_pools(model)
    assert [node.op_type for node in model.graph] == ["GlobalAveragePool"]
    assert [node.name for node in model.graph] == ["n_y_pool"]
    assert model.graph.outputs[0].name == "y"
