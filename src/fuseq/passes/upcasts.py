"""Regions that the author of an FP16 or BF16 model computes in FP32 on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.passes.float_slots import FLOATS, Slots

_NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_DELICATE = frozenset(
    {"CumSum", "Cos", "Exp", "Log", "Pow", "Reciprocal", "ReduceL2", "ReduceMean", "ReduceSum"}
    | {"ReduceSumSquare", "Sin", "Sqrt", "Range"}
)
"""Operators whose FP16 result differs visibly. Softmax and the normalizations are not among them:
compilers compute these in FP32 inside (LayerNormalization by ``stash_type``), their input was FP16
before the upcast and their output is small. TensorRT-RTX 1.7.1 makes the same attention kernel
with and without the Casts, so dropping them costs nothing and spares other compilers the bytes."""


def home_type(model: ir.Model) -> ir.DataType | None:
    """Return the float type of most products (Conv, MatMul, Gemm), or of most values without any."""
    products = Counter(
        node.outputs[0].dtype
        for node in model.graph
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul", "Attention")
        and node.outputs[0].dtype in FLOATS
    )
    values = Counter(
        value.dtype for node in model.graph for value in node.outputs if value.dtype in FLOATS
    )
    ranked = (products or values).most_common(1)
    return ranked[0][0] if ranked else None


def upcast_regions(model: ir.Model, slots: Mapping[ir.Node, Slots]) -> list[ir.Node]:
    """Return the nodes that compute in FP32 or FP64 inside a model of a narrower type.

    Regions are connected over values; one without a delicate operator (a softmax or LayerNorm in
    FP32, a few products) is not kept. In an FP32 model there is nothing to keep.
    """
    if home_type(model) not in _NARROW:
        return []
    wide = {node for node in model.graph if node in slots and _is_wide(node, slots[node])}
    regions: list[ir.Node] = []
    seen: set[ir.Node] = set()
    for start in model.graph:
        if start not in wide or start in seen:
            continue
        region = _grown(start, wide)
        seen |= region
        if any(node.op_type in _DELICATE for node in region):
            regions += [node for node in model.graph if node in region]
    return regions


def _is_wide(node: ir.Node, slots: Slots) -> bool:
    return bool(slots.outputs) and all(
        node.outputs[index].dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        for index in slots.outputs
    )


def _grown(start: ir.Node, wide: set[ir.Node]) -> set[ir.Node]:
    region, front = {start}, [start]
    while front:
        node = front.pop()
        for near in (*node.predecessors(), *node.successors()):
            if near in wide and near not in region:
                region.add(near)
                front.append(near)
    return region
