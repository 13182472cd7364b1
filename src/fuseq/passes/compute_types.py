"""Choose the float type that each node computes in, so that few Casts are needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from fuseq.passes.float_slots import Slots, is_float

MOVES = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"}
    | {"Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators that only move values (Cast: from integers); they take the type of their readers."""


PRODUCTS = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})


def compute_types(
    model: ir.Model,
    dtype: ir.DataType,
    slots: Mapping[ir.Node, Slots],
    fp32: Collection[ir.Node],
) -> dict[ir.Node, ir.DataType]:
    """Return the compute type per node: FP32 in ``fp32``, else ``dtype``.

    1. An operator that does not allow ``dtype`` takes FP32, or the first type it allows.
    2. A move whose readers all want FP32 is FP32: the Cast then stands before it, or nowhere.
       So is any other operator but the PRODUCTS whose inputs come in FP32 as well.
    3. A node without float outputs (Shape, Equal, Cast to an integer) reads what is there.
    """
    types = {
        node: ir.DataType.FLOAT if node in fp32 else _allowed(slots[node], dtype)
        for node in model.graph
    }
    between = _behind_fp32(model, slots, types)
    for node in reversed(list(model.graph)):  # case 2
        movable = (node.op_type in MOVES or node in between) and not slots[node].as_is
        if movable and _wants(node, slots, types) == {ir.DataType.FLOAT}:
            types[node] = ir.DataType.FLOAT
    for node in model.graph:  # case 3
        if not slots[node].outputs and node not in fp32:
            types[node] = _arriving(node, slots, types) or types[node]
    return types


def _allowed(slots: Slots, dtype: ir.DataType) -> ir.DataType:
    if dtype in slots.allowed or not slots.allowed:
        return dtype
    if ir.DataType.FLOAT in slots.allowed:
        return ir.DataType.FLOAT
    return min(slots.allowed)


def _wants(
    node: ir.Node, slots: Mapping[ir.Node, Slots], types: Mapping[ir.Node, ir.DataType]
) -> set[ir.DataType]:
    wants: set[ir.DataType] = set()
    for index in slots[node].outputs:
        for user, position in node.outputs[index].uses():
            if user not in slots:
                return set()
            fixed = dict(slots[user].fixed_inputs)
            wants.add(fixed.get(position, types[user]))
    return wants


def _behind_fp32(
    model: ir.Model, slots: Mapping[ir.Node, Slots], types: Mapping[ir.Node, ir.DataType]
) -> set[ir.Node]:
    """Nodes, other than products, whose computed inputs all come from FP32 nodes or such nodes."""
    behind: set[ir.Node] = set()
    for node in model.graph:
        if node.op_type in PRODUCTS or slots[node].as_is or not slots[node].inputs:
            continue
        makers = [
            value.producer()
            for index in slots[node].inputs
            if (value := node.inputs[index]) is not None and not value.is_initializer()
        ]
        if makers and all(
            maker is not None and (maker in behind or types.get(maker) == ir.DataType.FLOAT)
            for maker in makers
        ):
            behind.add(node)
    return behind


def _arriving(
    node: ir.Node, slots: Mapping[ir.Node, Slots], types: Mapping[ir.Node, ir.DataType]
) -> ir.DataType | None:
    for index in slots[node].inputs:
        value = node.inputs[index]
        maker = value.producer() if value is not None else None
        if value is None or value.is_initializer():
            continue
        if maker is None or maker not in slots or slots[maker].as_is:
            return value.dtype if is_float(value) else None
        return dict(slots[maker].fixed_outputs).get(value.index() or 0, types[maker])
    return None
