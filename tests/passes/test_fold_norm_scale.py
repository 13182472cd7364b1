"""A factor behind LayerNormalization becomes part of it; whatever is not exactly that stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.passes.fold_norm_scale import fold_norm_scales
from tests.graphs import from_text, named, normal
from tests.quantized_nets import run_as_written

FACTOR = normal(8, seed=3, scale=1.0) + 2


def net(
    op: str = "Mul", factor: np.ndarray = FACTOR, axis: int = -1, bias: bool = True, extra: str = ""
) -> ir.Model:
    inputs = "x, g, b" if bias else "x, g"
    order = "m, n" if op == "LeftMul" else "n, m"
    return named(
        from_text(
            f"""<ir_version: 10, opset_import: ["" : 21]>
            net (float[2, 4, 8] x) => (float[2, 4, 8] y{", float[2, 4, 8] z" if extra else ""}) {{
              n = LayerNormalization <axis = {axis}> ({inputs})
              s = {op.removeprefix("Left")}({order})
              {extra}
              y = Relu(s)
            }}""",
            g=normal(8, seed=1) + 1 if axis == -1 else normal(4, 8, seed=1) + 1,
            b=normal(8, seed=2) if axis == -1 else normal(4, 8, seed=2),
            m=factor,
        )
    )


@pytest.mark.parametrize("op", ["Mul", "LeftMul", "Div"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8,), (1, 1, 8), (1,), ()])
def test_folds_and_computes_the_same(op: str, bias: bool, shape: tuple[int, ...]) -> None:
    factor = (FACTOR if np.prod(shape) == 8 else FACTOR[:1]).reshape(shape)
    model = net(op, factor, bias=bias)
    x = normal(2, 4, 8, scale=3.0)
    before = run_as_written(model, x=x)
    fold_norm_scales(model)
    assert [node.op_type for node in model.graph] == ["LayerNormalization", "Relu"]
    assert np.allclose(run_as_written(model, x=x), before, rtol=1e-5, atol=1e-6)
    scale = model.graph[0].inputs[1].const_value.numpy()  # type: ignore[union-attr]
    m = np.float64(1) / factor.astype(np.float64) if op == "Div" else factor.astype(np.float64)
    assert np.array_equal(
        scale, ((normal(8, seed=1) + 1).astype(np.float64) * m.reshape(-1)).astype("f4")
    )


@pytest.mark.parametrize(
    "model",
    [
        net(factor=normal(4, 1, scale=1.0)),  # varies along another axis
        net(factor=normal(2, 4, 8, scale=1.0)),
        net(axis=1),  # normalized over two axes
        net(extra="z = Neg(n)"),  # somebody else reads the norm
        net("Div", np.zeros(8, np.float32)),
    ],
)
def test_stays(model: ir.Model) -> None:
    before = [node.op_type for node in model.graph]
    fold_norm_scales(model)
    assert [node.op_type for node in model.graph] == before
