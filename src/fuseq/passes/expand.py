"""Drop an Expand in front of operators that broadcast anyway."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from fuseq.passes.matching import is_op
from fuseq.passes.splice import bypass
from fuseq.passes.symbolic_dims import same_dim

BROADCASTING = (
    *(
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Min",
        "Max",
        "Where",
        "And",
        "Or",
        "Xor",
        "Equal",
        "Less",
    ),
    *("LessOrEqual", "Greater", "GreaterOrEqual"),
)

_Dims = Sequence[int | ir.SymbolicDim]


def drop_expands(model: ir.Model) -> list[str]:
    """Remove every Expand whose readers give the same result without it.

    An expanded axis must be spread by another operand of the reader, or of the reader's readers:
    ``Add(scores[b, h, s, s], Where(Expand(mask[1, 1, s, s], b), 0, fill))`` needs no Expand, and the
    Where becomes a constant when the mask is one.
    """
    for node in list(model.graph):
        if not is_op(node, "Expand"):
            continue
        source, out = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None or out.shape is None:
            continue
        lost = _lost_axes(list(source.shape), list(out.shape))
        stale: list[ir.Value] = []
        if lost is not None and _not_missed(out, lost, stale) and bypass(model.graph, node, source):
            for value in stale:
                value.shape = None
    return []


def _lost_axes(source: _Dims, out: _Dims) -> set[int] | None:
    """Axes, counted from the last (-1), that the Expand spreads; None where it adds axes."""
    if len(source) != len(out):
        return None
    return {axis - len(out) for axis in range(len(out)) if not same_dim(source[axis], out[axis])}


def _not_missed(value: ir.Value, lost: set[int], stale: list[ir.Value]) -> bool:
    if not lost:
        return True
    if value.is_graph_output():
        return False
    for reader in value.consumers():
        out = reader.outputs[0]
        if not is_op(reader, *BROADCASTING) or reader.graph is not value.graph or out.shape is None:
            return False
        others = [each for each in reader.inputs if each is not None and each is not value]
        still = {axis for axis in lost if not any(_spreads(each, axis, out) for each in others)}
        if still:
            stale.append(out)
        if not _not_missed(out, still, stale):
            return False
    return True


def _spreads(other: ir.Value, axis: int, out: ir.Value) -> bool:
    """``other`` alone gives ``out`` its size on ``axis`` (counted from the last)."""
    if other.shape is None or out.shape is None or -axis > len(other.shape):
        return False
    return -axis <= len(out.shape) and same_dim(other.shape[axis], out.shape[axis])
