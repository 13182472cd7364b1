"""A weight that is computed from constants becomes one initializer, with its Q/DQ behind it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.convert_weights import LAZY_BYTES, converted
from fuseq.passes.float_slots import FLOATS
from fuseq.passes.matching import constant, integer_attribute, integers, is_op, made_by
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant, replace

_LAYOUT = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast")


def resolve_weights(model: ir.Model) -> list[str]:
    """Fold layout operators over weights of any size; a layer's weight is then an initializer.

    1. Transpose, Reshape, Squeeze, Unsqueeze, Flatten, Identity, Cast between floats of a constant:
       a new initializer. A big weight in an external file stays there and is read, moved and
       dropped when it is written. (Small constants are folded before by the library.)
    2. Transpose behind DequantizeLinear of a stored weight (W -> Q -> DQ -> Transpose -> MatMul):
       the weight is transposed and the axis of the scales follows.
    """
    taken = value_names(model)
    for node in list(model.graph):
        if not is_op(node, *_LAYOUT):
            continue
        if constant(node.inputs[0]) is not None:
            _fold_layout(model.graph, node, taken)
        elif node.op_type == "Transpose":
            _fold_behind_dequantize(model.graph, node, taken)
    return []


def _fold_layout(graph: ir.Graph, node: ir.Node, taken: set[str]) -> None:
    tensor, output = constant(node.inputs[0]), node.outputs[0]
    if tensor is None or output.is_graph_output():
        return
    moved = _moved(node, tensor)
    if moved is None:
        return
    name = output.name or "weight"
    made = new_constant(graph, name, moved, taken - {name})
    taken.add(made.name or name)
    output.name = None
    output.replace_all_uses_with(made)
    graph.remove(node, safe=True)


def _moved(node: ir.Node, tensor: ir.TensorProtocol) -> ir.TensorProtocol | None:
    shape = tuple(tensor.shape.numpy())
    if node.op_type == "Cast":
        wanted = ir.DataType(node.attributes["to"].as_int())
        return converted(tensor, wanted) if {tensor.dtype, wanted} <= FLOATS else None
    if node.op_type == "Identity":
        return tensor
    if node.op_type == "Transpose":
        perm = _perm(node, len(shape))
        if sorted(perm) != list(range(len(shape))):
            return None
        return _lazily(tensor, tuple(shape[axis] for axis in perm), perm)
    target = _target(node, shape)
    fits = target is not None and int(np.prod(target, dtype=np.int64)) == tensor.size
    return _lazily(tensor, target, None) if fits and target is not None else None


def _target(node: ir.Node, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    size = int(np.prod(shape, dtype=np.int64))
    if node.op_type == "Flatten":
        rows = int(np.prod(shape[: integer_attribute(node, "axis", 1)], dtype=np.int64))
        return (rows, size // rows) if rows else None
    told = integers(node.inputs[1]) if len(node.inputs) > 1 else None
    if node.op_type == "Squeeze":
        axes = [axis for axis, dim in enumerate(shape) if dim == 1] if told is None else told
        gone = {axis % len(shape) for axis in axes}
        return tuple(dim for axis, dim in enumerate(shape) if axis not in gone)
    if told is None:
        return None
    if node.op_type == "Unsqueeze":
        rank = len(shape) + len(told)
        new = {axis % rank for axis in told}
        rest = iter(shape)
        return tuple(1 if axis in new else next(rest) for axis in range(rank))
    if 0 in told and integer_attribute(node, "allowzero", 0) == 0:
        told = [shape[axis] if dim == 0 else dim for axis, dim in enumerate(told)]
    known = int(np.prod([dim for dim in told if dim != -1], dtype=np.int64))
    return tuple(size // known if dim == -1 else dim for dim in told) if known else None


def _lazily(
    tensor: ir.TensorProtocol, shape: tuple[int, ...], perm: list[int] | None
) -> ir.TensorProtocol:
    """The tensor transposed by ``perm``, or reshaped to ``shape`` where ``perm`` is None."""

    def read() -> ir.TensorProtocol:
        array = tensor.numpy()
        moved = array.reshape(shape) if perm is None else np.transpose(array, perm)
        return ir.Tensor(moved, dtype=tensor.dtype, shape=ir.Shape(shape))  # a view, not a copy

    if isinstance(tensor, (ir.ExternalTensor, ir.LazyTensor)) and tensor.nbytes > LAZY_BYTES:
        return ir.LazyTensor(read, dtype=tensor.dtype, shape=ir.Shape(shape), cache=False)
    return read()


def _perm(node: ir.Node, rank: int) -> list[int]:
    perm = node.attributes.get("perm")
    return list(range(rank))[::-1] if perm is None else list(perm.as_ints())


def _fold_behind_dequantize(graph: ir.Graph, node: ir.Node, taken: set[str]) -> None:
    """Case 2."""
    dequantize = made_by(node.inputs[0], "DequantizeLinear")
    quantize = made_by(dequantize.inputs[0], "QuantizeLinear") if dequantize is not None else None
    first = quantize or dequantize
    tensor = constant(first.inputs[0]) if first is not None else None
    if dequantize is None or first is None or tensor is None:
        return
    moved = _moved(node, tensor)
    if moved is None or "block_size" in dequantize.attributes:
        return
    source = first.inputs[0]
    name = f"{source.name if source is not None else 'weight'}_transposed"
    value: ir.Value = new_constant(graph, name, moved, taken)
    perm = _perm(node, len(moved.shape))
    made = []
    for old in [each for each in (quantize, dequantize) if each is not None]:
        again = ir.node(old.op_type, [value, *old.inputs[1:]], dict(old.attributes), name=old.name)
        axis = integer_attribute(old, "axis", 1) % len(perm)
        scale = constant(old.inputs[1])
        if scale is not None and len(scale.shape) == 1:
            again.attributes["axis"] = ir.AttrInt64("axis", perm.index(axis))
        again.outputs[0].type = old.outputs[0].type
        again.outputs[0].shape = ir.Shape(moved.shape.numpy())
        made.append(again)
        value = again.outputs[0]
    replace(graph, [node], made, node.outputs, [value])
