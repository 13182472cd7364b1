"""A transpose of the last two axes, written through a flattened batch, becomes one Transpose."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.matching import is_op, made_by, only_reader
from fuseq.passes.splice import replace
from fuseq.passes.symbolic_dims import Dim, shape_elements, value_dims


def merge_flat_transposes(model: ir.Model) -> list[str]:
    """Rewrite Reshape -> Transpose(0, 2, 1) -> Reshape into one Transpose of the last two axes.

    torch.onnx.export(dynamo=True) writes K's transpose in attention as
    ``[b, h, s, d] -> [-1, s, d] -> [-1, d, s] -> [b, h, d, s]`` with the shapes computed at run time.
    The rewrite is exact when the last Reshape restores the leading axes, which is read off the
    shape arithmetic.
    """
    for last in list(model.graph):
        if not is_op(last, "Reshape"):
            continue
        swap = made_by(last.inputs[0], "Transpose")
        first = made_by(swap.inputs[0], "Reshape") if swap is not None else None
        if swap is None or first is None or not _swaps(first, swap, last):
            continue
        source = first.inputs[0]
        rank = len(source.shape) if source is not None and source.shape is not None else 0
        perm = [*range(rank - 2), rank - 1, rank - 2]
        merged = ir.node("Transpose", [source], {"perm": perm}, name=swap.name)
        old = [first, swap, last]
        if only_reader(first.outputs[0]) is not swap or only_reader(swap.outputs[0]) is not last:
            old = [last]
        merged.metadata_props.update(swap.metadata_props)
        replace(model.graph, old, [merged], last.outputs, merged.outputs)
        if source is not None and source.shape is not None:
            merged.outputs[0].shape = ir.Shape([source.shape[axis] for axis in perm])
    return []


def _swaps(first: ir.Node, swap: ir.Node, last: ir.Node) -> bool:
    perm = swap.attributes.get("perm")
    source = first.inputs[0]
    if perm is None or list(perm.as_ints()) != [0, 2, 1] or source is None:
        return False
    dims, flat, final = (
        value_dims(source),
        shape_elements(first.inputs[1]),
        shape_elements(last.inputs[1]),
    )
    if dims is None or flat is None or final is None or len(dims) < 3 or len(flat) != 3:
        return False
    expected = [*dims[:-2], dims[-1], dims[-2]]
    return _same(flat[1:], dims[-2:]) and _same(final, expected)


def _same(found: list[Dim], expected: list[Dim]) -> bool:
    """Equal element by element; one -1 may stand for any one dimension (Reshape infers it)."""
    if len(found) != len(expected) or found.count(-1) > 1:
        return False
    return all(a in (-1, b) for a, b in zip(found, expected, strict=True))
