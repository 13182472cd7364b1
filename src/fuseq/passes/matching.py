"""Read patterns in a graph: who made a value, who alone reads it, what constant it is."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

SMALL_ELEMENTS = 1 << 16
"""Constants above this size are weights and are not looked into while a pattern is matched."""


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the ONNX node of one of ``op_types`` that makes ``value``, else None."""
    node = value.producer() if value is not None else None
    return node if node is not None and is_op(node, *op_types) else None


def is_op(node: ir.Node, *op_types: str) -> bool:
    """Tell whether ``node`` is an ONNX operator of one of ``op_types``."""
    return node.domain == "" and node.op_type in op_types


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads ``value``, once; None where the graph gives it out."""
    uses = value.uses()
    if value.is_graph_output() or len(uses) != 1:
        return None
    node = next(iter(uses)).node
    return node if node.graph is value.graph or value.producer() is None else None


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a value that no caller can change, else None."""
    if value is None or value.is_graph_input():
        return None
    return ir.convenience.get_const_tensor(value)


def array(value: ir.Value | None, limit: int = SMALL_ELEMENTS) -> np.ndarray | None:
    """Return a constant of at most ``limit`` elements as an array, else None."""
    tensor = constant(value)
    return tensor.numpy() if tensor is not None and tensor.size <= limit else None


def scalar(value: ir.Value | None) -> float | None:
    """Return the one element of a constant, else None."""
    found = array(value, 1)
    return float(found.reshape(-1)[0]) if found is not None and found.size == 1 else None


def integers(value: ir.Value | None) -> list[int] | None:
    """Return a small integer constant (axes, pads, a shape) as a list, else None."""
    found = array(value, 64)
    if found is None or not np.issubdtype(found.dtype, np.integer):
        return None
    return [int(item) for item in found.reshape(-1)]


def integer_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute or the operator's ``default``."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def float_attribute(node: ir.Node, name: str, default: float) -> float:
    """Return a float attribute or the operator's ``default``."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def split_constant(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Split a two-input node into (computed, constant) operands in either order, else None."""
    if len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    if constant(right) is not None and constant(left) is None:
        return left, right
    if constant(left) is not None and constant(right) is None:
        return right, left
    return None
