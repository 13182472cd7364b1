"""Means over the image axes become GlobalAveragePool, which has an integer kernel; ReduceMean has none."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.matching import integer_attribute, integers, is_op
from fuseq.passes.splice import replace, typed


def means_to_pools(model: ir.Model) -> list[str]:
    """Rewrite ReduceMean over all axes behind the channels, in place.

    1. ``keepdims=1``: ``x [N, C, H, W] -> GlobalAveragePool -> [N, C, 1, 1]``.
    2. ``keepdims=0``: the same, then ``Flatten <axis = 1>`` to ``[N, C]``.

    The values are the same but for the order of the sum. Inputs of rank 3 and 5 too.
    """
    for node in list(model.graph):
        data = node.inputs[0] if is_op(node, "ReduceMean") else None
        if data is None or data.shape is None or len(data.shape) not in (3, 4, 5):
            continue
        if _axes(node, len(data.shape)) != list(range(2, len(data.shape))):
            continue
        out = node.outputs[0]
        pool = ir.node("GlobalAveragePool", [data], name=f"{node.name}_pool")
        if integer_attribute(node, "keepdims", 1):
            replace(model.graph, [node], [pool], [out], [pool.outputs[0]])
            continue
        channels = ir.Shape([data.shape[0], data.shape[1], *[1] * (len(data.shape) - 2)])
        typed(pool, data.dtype, channels)
        pool.outputs[0].name = f"{out.name}_pooled"
        flat = ir.node("Flatten", [pool.outputs[0]], {"axis": 1}, name=node.name)
        replace(model.graph, [node], [pool, flat], [out], [flat.outputs[0]])
    return []


def _axes(node: ir.Node, rank: int) -> list[int]:
    """Reduced axes counted from the front, sorted; from the input (opset 18) or the attribute."""
    found = integers(node.inputs[1]) if len(node.inputs) > 1 else None
    if found is None:
        found = [int(axis) for axis in node.attributes.get_ints("axes", ()) or ()]
    return sorted(axis % rank for axis in found)
