from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import parser

from fuseq.calibration.graph_statistics import in_graph_order
from fuseq.calibration.observed import (
    in_blocked_layout,
    never_negative,
    representative,
    resolve,
    values_by_name,
)

NET = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[1, 3, 8, 8] x) => (float[8, 1] y)
    <float[8, 3, 3, 3] w, float[8, 8, 1, 1] v, float zero = {0}, float six = {6}, float low = {-1},
     int64[2] flat = {8, 64}> {
  c = Conv(x, w)
  relu6 = Clip(c, zero, six)
  some = Clip(c, low, six)
  open = Clip(c)
  pool = MaxPool <kernel_shape = [2, 2]> (relu6)
  both = Add(pool, pool)
  mixed = Add(relu6, some)
  twice = Mul(some, some)
  d = Conv(both, v)
  turned = Transpose <perm = [1, 0, 2, 3]> (d)
  rows = Flatten(turned)
  same = Identity(rows)
  p = Softmax(same)
  back = Transpose(p)
  n = Neg(back)
  y = ReduceMax <keepdims = 1> (same, axis)
}"""


def graph() -> ir.Graph:
    model = parser.parse_model(NET.replace(", axis)", ")"))
    return ir.from_proto(onnx.shape_inference.infer_shapes(model)).graph


def names(values: frozenset[ir.Value]) -> set[str]:
    return {value.name or "" for value in values}


def test_never_negative() -> None:
    assert names(never_negative(graph())) == {"relu6", "pool", "both", "p", "back"}


def test_blocked_layout_follows_convolutions() -> None:
    assert names(in_blocked_layout(graph())) == {
        "c", "relu6", "some", "open", "pool", "both", "mixed", "twice", "d",
    }  # fmt: skip


def test_representative_is_where_the_values_come_from() -> None:
    values = values_by_name(graph())
    for name in ("d", "turned", "rows", "same"):
        assert representative(values[name]) is values["d"]
    assert representative(values["pool"]) is values["pool"]
    assert representative(values["back"]) is values["p"]
    assert representative(values["x"]) is values["x"]


def test_resolve_gives_none_for_what_is_not_there() -> None:
    net = graph()
    found = resolve(["same", "missing", "w"], net)
    assert found["same"] is values_by_name(net)["d"]
    assert found["missing"] is None and found["w"] is None


def test_graph_order() -> None:
    net = graph()
    values = values_by_name(net)
    chosen = [values[name] for name in ("n", "c", "x", "d", "pool")]
    ordered = [value.name for value in in_graph_order(net, chosen)]
    assert ordered == ["x", "c", "pool", "d", "n"]
