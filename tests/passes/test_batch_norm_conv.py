"""BatchNormalization in inference becomes a depthwise 1x1 convolution."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fuseq.passes.batch_norm_conv import batch_norms_to_convs
from tests.graphs import from_text, named, normal
from tests.islands import case_of, kernels, run, sqnr_db


def _model(dims: str = "n, 6, 4, 4", attributes: str = "") -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[{dims}] x, float[6] given) => (float[{dims}] y)
    {{ b = BatchNormalization {attributes} (x, g, o, m, v)  y = Relu(b) }}"""
    statistics = {
        "g": normal(6, seed=1, scale=1.0),
        "o": normal(6, seed=2, scale=1.0),
        "m": normal(6, seed=3, scale=1.0),
        "v": np.abs(normal(6, seed=4, scale=1.0)) + np.float32(0.01),
    }
    return named(from_text(text, **statistics))


@pytest.mark.parametrize("shape", [(2, 6, 4, 4), (2, 6, 5), (2, 6, 2, 3, 4)])
def test_the_convolution_computes_the_formula(shape: tuple[int, ...]) -> None:
    model = _model(", ".join(["n", *map(str, shape[1:])]), "<epsilon = 0.001>")
    names = ("g", "o", "m", "v")
    tensors = [model.graph.initializers[name].const_value for name in names]
    g, o, m, v = (
        t.numpy().astype(np.float64).reshape(6, *[1] * (len(shape) - 2)) for t in tensors if t
    )
    x = normal(*shape, seed=5, scale=1.0)
    expected = np.maximum((x - m) / np.sqrt(v + np.float32(0.001)) * g + o, 0)
    batch_norms_to_convs(model)
    assert [node.op_type for node in model.graph] == ["Conv", "Relu"]
    assert [node.name for node in model.graph] == ["n_b", "n_y"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    found = run(model, {"x": x, "given": np.zeros(6, np.float32)})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_it_runs_on_integers_with_its_activation() -> None:
    model = _model()
    feeds = {"x": normal(2, 6, 4, 4, seed=5, scale=1.0), "given": np.zeros(6, np.float32)}
    batch_norms_to_convs(model)
    case = case_of(model, feeds)
    assert kernels(case.quantized)["QLinearConv"] == 1
    assert sqnr_db(run(model, feeds), run(case.quantized, feeds)) > 30


def test_statistics_that_are_inputs_and_training_stay() -> None:
    model = _model()
    model.graph[0].replace_input_with(3, model.graph.inputs[1])
    batch_norms_to_convs(model)
    assert model.graph[0].op_type == "BatchNormalization"
    trained = _model(attributes="<training_mode = 1>")
    batch_norms_to_convs(trained)
    assert trained.graph[0].op_type == "BatchNormalization"
