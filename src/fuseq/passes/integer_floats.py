"""Floats that are computed from integers alone: positions, sizes, timesteps' frequencies."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from fuseq.passes.float_slots import Slots, is_float
from fuseq.passes.matching import constant, is_op

_POINTWISE = frozenset(
    {"Abs", "Add", "Ceil", "Clip", "Cos", "Div", "Exp", "Floor", "Log", "Max", "Min", "Mod", "Mul"}
    | {"Neg", "Pow", "Reciprocal", "Round", "Sin", "Sqrt", "Sub", "Where", "CumSum", "Range"}
)
_MOVES = frozenset(
    {"Cast", "Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Tile", "Transpose", "Unsqueeze", "Flatten"}
)
_EXACT = frozenset(
    {"Ceil", "Cos", "CumSum", "Div", "Exp", "Floor", "Log", "Mod", "Pow", "Range"}
) | {*("Reciprocal", "Round", "Sin", "Sqrt")}
"""Operators that make a rounded position visible: the phase of a sine, a floor, a bucket's log."""

_SMALL_INTEGERS = frozenset(
    {ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT4, ir.DataType.UINT4}
)
"""Exact in FP16 (integers to 2048) and BF16 (to 256): images and masks are not positions."""

_TABLE_ELEMENTS = 1 << 16


def integer_regions(model: ir.Model, slots: Mapping[ir.Node, Slots]) -> list[ir.Node]:
    """Return nodes whose floats come from integers alone and whose region holds an exact operator.

    A region grows from Cast of INT32 or INT64 to float, Range, and small constants, through
    pointwise operators, moves and outer products (MatMul over an axis of size 1, as rotary
    embeddings have it). FP16 counts exactly to 2048 only, BF16 to 256, so positions need FP32; the
    region is small and is cast where it meets a real activation. A region without an exact
    operator, like a padding mask ``(1 - mask) * fill``, is left to the compute type.
    """
    derived: dict[ir.Node, int] = {}
    exact: set[int] = set()
    merged: dict[int, int] = {}
    for number, node in enumerate(model.graph):
        if node not in slots or slots[node].as_is or not slots[node].outputs:
            continue
        parents = _parents(node, slots[node], derived)
        if parents is None:
            continue
        roots = {_root(parent, merged) for parent in parents}
        home = min(roots, default=number)
        merged.update({root: home for root in roots if root != home})
        derived[node] = home
        if node.op_type in _EXACT:
            exact.add(home)
    living = {_root(region, merged) for region in exact}
    return [node for node, region in derived.items() if _root(region, merged) in living]


def _root(region: int, merged: Mapping[int, int]) -> int:
    while region in merged:
        region = merged[region]
    return region


def _parents(node: ir.Node, slots: Slots, derived: Mapping[ir.Node, int]) -> list[int] | None:
    """Regions that ``node`` continues (none: it starts one), or None where it is no such node."""
    if not is_op(node, *_POINTWISE, *_MOVES) and not _is_outer_product(node):
        return None
    parents = []
    for index in slots.inputs:
        value = node.inputs[index]
        maker = value.producer() if value is not None else None
        if maker in derived and maker is not None:
            parents.append(derived[maker])
        else:
            tensor = constant(value)
            if tensor is None or tensor.size > _TABLE_ELEMENTS:
                return None
    if parents:
        return parents
    starts = is_op(node, "Range") or (is_op(node, "Cast") and _is_wide_integer(node.inputs[0]))
    return [] if starts else None


def _is_wide_integer(value: ir.Value | None) -> bool:
    if value is None or value.dtype is None or is_float(value):
        return False
    return value.dtype not in _SMALL_INTEGERS


def _is_outer_product(node: ir.Node) -> bool:
    if not is_op(node, "MatMul"):
        return False
    left = node.inputs[0]
    return left is not None and left.shape is not None and left.shape[-1] == 1
