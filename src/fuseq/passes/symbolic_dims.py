"""Follow integers of shape arithmetic back to the dimension of the value that they came from."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.matching import integer_attribute, integers, made_by

Dim = int | tuple[ir.Value, int]
"""A known size, or (value, axis): the size of that value's axis at run time."""

_END = 2**62


def shape_elements(value: ir.Value | None) -> list[Dim] | None:
    """Return what each element of a 1-D (or scalar) shape tensor is, None where it is not known.

    Follows Shape, Slice, Gather, Concat, Squeeze, Unsqueeze, Reshape, Cast and constants; a static
    dimension of a shape is given as its number.
    """
    known = integers(value)
    if known is not None:
        return list(known)
    node = value.producer() if value is not None else None
    if node is None or node.domain != "":
        return None
    if node.op_type == "Shape":
        return _of_shape(node)
    if node.op_type in ("Squeeze", "Unsqueeze", "Reshape", "Cast", "Identity"):
        return shape_elements(node.inputs[0])
    if node.op_type == "Concat":
        parts = [shape_elements(part) for part in node.inputs]
        return None if None in parts else [dim for part in parts if part for dim in part]
    if node.op_type == "Slice":
        return _of_slice(node)
    if node.op_type == "Gather" and made_by(value, "Gather") is not None:
        return _of_gather(node)
    return None


def value_dims(value: ir.Value) -> list[Dim] | None:
    """Return the dimensions of ``value``: its static sizes, and itself where they are not static."""
    if value.shape is None:
        return None
    return [dim if isinstance(dim, int) else (value, axis) for axis, dim in enumerate(value.shape)]


def same_shape(one: ir.Value, other: ir.Value) -> bool:
    """Tell whether both shapes are known and equal, axis by axis, in size or in symbol."""
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return False
    return all(same_dim(a, b) for a, b in zip(one.shape, other.shape, strict=True))


def same_dim(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    """Tell whether two dimensions are the same number, or the same named symbol."""
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return one.value is not None and one.value == other.value


def _of_shape(node: ir.Node) -> list[Dim] | None:
    source = node.inputs[0]
    dims = value_dims(source) if source is not None else None
    if dims is None:
        return None
    start = integer_attribute(node, "start", 0)
    return dims[start : integer_attribute(node, "end", _END)]


def _of_slice(node: ir.Node) -> list[Dim] | None:
    whole = shape_elements(node.inputs[0])
    starts, ends = integers(node.inputs[1]), integers(node.inputs[2])
    steps = integers(node.inputs[4]) if len(node.inputs) > 4 else [1]
    if whole is None or starts is None or ends is None or steps != [1]:
        return None
    return whole[starts[0] : ends[0]]


def _of_gather(node: ir.Node) -> list[Dim] | None:
    whole, indices = shape_elements(node.inputs[0]), integers(node.inputs[1])
    if whole is None or indices is None:
        return None
    if any(not -len(whole) <= index < len(whole) for index in indices):
        return None
    return [whole[index] for index in indices]
