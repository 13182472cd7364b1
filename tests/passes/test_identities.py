"""Identities in branches: outputs stay in their own graph; the model computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from fuseq.passes.canonical import canonicalize
from fuseq.passes.identities import drop_identities

BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[2, 3] x) => (float[2, 3] y, float[2, 3] z) {
  a = Relu(x)
  p, q = If (c) <
    then_branch = then () => (float[2, 3] p1, float[2, 3] q1) { p1 = Identity(a)  q1 = Neg(a) },
    else_branch = else () => (float[2, 3] p2, float[2, 3] q2) { p2 = Identity(a)  q2 = Identity(a) }
  >
  y = Identity(p)
  r = Identity(q)
  z = Exp(r)
}
"""
TWICE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y, float[2] z, float[2] same) {
  y = Relu(x)
  z = Identity(y)
  same = Identity(x)
}
"""


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("edit", [drop_identities, canonicalize])
def test_branches_keep_outputs_of_their_own(condition: bool, edit: object) -> None:
    proto = onnx.parser.parse_model(BRANCHES)
    feeds = {"c": np.array(condition), "x": np.array([[1, -2, 3], [-4, 5, 6]], np.float32)}
    wanted = _run(proto, feeds)
    model = ir.from_proto(proto)
    edit(model)  # type: ignore[operator]
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    for one, other in zip(wanted, _run(after, feeds), strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_what_an_output_needs_stays() -> None:
    model = ir.from_proto(onnx.parser.parse_model(BRANCHES))
    drop_identities(model)
    assert [node.op_type for node in model.graph] == ["Relu", "If", "Exp"]
    kinds = [[node.op_type for node in graph] for graph in model.graphs()]
    assert sorted(kinds[1:]) == [["Identity", "Identity"], ["Identity", "Neg"]]
    assert [output.name for output in model.graph.outputs] == ["y", "z"]


def test_an_output_keeps_its_name_where_its_source_is_one_too() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TWICE))
    drop_identities(model)
    assert [output.name for output in model.graph.outputs] == ["y", "z", "same"]
    assert [node.op_type for node in model.graph] == ["Relu", "Identity", "Identity"]
