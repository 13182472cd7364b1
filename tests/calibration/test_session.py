"""A session has its own copies of the weights, so that what was handed over can be let go."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.calibration import session
from tests.graphs import from_text, normal


@pytest.mark.parametrize("prepacked_bytes", [0, 2**30])
def test_the_session_does_not_read_the_arrays_that_it_was_given(
    prepacked_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_PREPACKED_BYTES", prepacked_bytes)
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[N, 256] x) => (float[N, 256] y) { a = MatMul(x, w)  y = Add(a, w2) }"""
    weight, shift = normal(256, 256, seed=1), normal(256, 256, seed=2)
    exact = normal(256, 256, seed=3) @ weight + shift
    model = from_text(text, w=weight, w2=shift)
    given = {"w": weight.copy(), "w2": shift.copy()}
    for name, array in given.items():
        model.graph.initializers[name].const_value = ir.Tensor(array, name=name)
    opened = session.open_session(model, threads=1)
    for array in given.values():
        array[...] = np.nan
    (found,) = opened.run(["y"], {"x": normal(256, 256, seed=3)})
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
