"""Sizes that ONNX shape inference loses: a batch behind Reshape to -1, and what follows from it."""

from __future__ import annotations

import math

import onnx_ir as ir

from fuseq.passes.matching import constant, integer_attribute, is_op
from fuseq.passes.symbolic_dims import Dim, shape_elements

Size = int | str | None
"""A number, a symbol's name, or not known."""

_DATA_ELEMENTS = 64


def fill_open_sizes(model: ir.Model) -> None:
    """Go through the main graph once, in order, and fill sizes that are not known yet.

    1. Reshape: the target is followed back to sizes and symbols; -1 is the symbol that is left over
       when all other factors of the input's and the target's element counts agree.
    2. Expand and ConstantOfShape to a computed shape: its elements.
    3. Any other operator: onnx infers it alone, from the inputs as they are known by now.
    """
    opsets = model.opset_imports
    for node in model.graph:
        if all(is_known(output.shape) for output in node.outputs if output.name):
            continue
        if is_op(node, "Reshape", "Expand", "ConstantOfShape"):  # cases 1 and 2
            found = _reshaped(node) if node.op_type == "Reshape" else _spread(node)
            if found is not None:
                _merge(node.outputs[0], found)
        else:
            _infer_alone(node, opsets.get(node.domain, 0))


def is_known(shape: ir.Shape | None) -> bool:
    """Tell whether every axis is a number or a named symbol."""
    return shape is not None and all(size_of(dim) is not None for dim in shape)


def size_of(dim: int | ir.SymbolicDim) -> Size:
    """The number or the symbol's name; None for an open one and for names that onnx makes up."""
    if isinstance(dim, int):
        return dim
    return None if dim.value is None or dim.value.startswith("unk__") else dim.value


def _sizes(dims: list[Dim] | None) -> list[Size] | None:
    if dims is None:
        return None
    return [dim if isinstance(dim, int) else _size_of_axis(*dim) for dim in dims]


def _size_of_axis(value: ir.Value, axis: int) -> Size:
    return size_of(value.shape[axis]) if value.shape is not None else None


def _reshaped(node: ir.Node) -> list[Size] | None:
    source = node.inputs[0]
    target = _sizes(shape_elements(node.inputs[1]))
    if source is None or source.shape is None or target is None:
        return None
    before = [size_of(dim) for dim in source.shape]
    if not integer_attribute(node, "allowzero", 0):
        target = [
            before[axis] if size == 0 and axis < len(before) else size
            for axis, size in enumerate(target)
        ]
    if -1 in target:
        rest = [size for size in target if size != -1]
        target[target.index(-1)] = _left_over(before, rest)
    return target


def _left_over(whole: list[Size], parts: list[Size]) -> Size:
    """Divide the product of ``whole`` by that of ``parts``, when numbers and symbols allow it."""
    if None in whole or None in parts:
        return None
    symbols = [size for size in whole if isinstance(size, str)]
    for symbol in (size for size in parts if isinstance(size, str)):
        if symbol not in symbols:
            return None
        symbols.remove(symbol)
    above = math.prod(size for size in whole if isinstance(size, int))
    below = math.prod(size for size in parts if isinstance(size, int))
    if below == 0 or above % below:
        return None
    if not symbols:
        return above // below
    return symbols[0] if len(symbols) == 1 and above == below else None


def _spread(node: ir.Node) -> list[Size] | None:
    target = _sizes(shape_elements(node.inputs[-1]))
    if node.op_type == "ConstantOfShape" or target is None:
        return target
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    before = [size_of(dim) for dim in source.shape]
    rank = max(len(before), len(target))
    pairs = zip(_padded(before, rank), _padded(target, rank), strict=True)
    return [old if wanted == 1 else wanted for old, wanted in pairs]


def _padded(sizes: list[Size], rank: int) -> list[Size]:
    ones: list[Size] = [1] * (rank - len(sizes))
    return ones + sizes


def _merge(output: ir.Value, sizes: list[Size]) -> None:
    old = output.shape
    if old is not None and len(old) == len(sizes):
        sizes = [
            new if size_of(dim) is None else size_of(dim)
            for new, dim in zip(sizes, old, strict=True)
        ]
    output.shape = ir.Shape(sizes)


def _infer_alone(node: ir.Node, opset: int) -> None:
    from onnx import checker, defs, shape_inference  # noqa: PLC0415 (loads every schema)

    if not defs.has(node.op_type, opset, node.domain):
        return
    types, data = {}, {}
    for value in [value for value in node.inputs if value is not None]:
        if value.type is None:
            return
        given = ir.to_proto(value.type)
        if value.shape is not None:
            ir.serde.serialize_shape_into(given, value.shape)
        types[value.name or ""] = given
        tensor = constant(value)
        if tensor is not None and tensor.size <= _DATA_ELEMENTS:
            data[value.name or ""] = ir.to_proto(tensor)
    try:
        found = shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, opset, node.domain), ir.to_proto(node), types, data
        )
    except (shape_inference.InferenceError, checker.ValidationError):  # also: two float types meet
        return  # the whole-graph inference has said what it could; the file may still compile
    for output in node.outputs:
        kind = found.get(output.name or "")
        shape = ir.serde.deserialize_type_proto_for_shape(kind) if kind is not None else None
        if shape is not None:
            _merge(output, [size_of(dim) for dim in shape])
