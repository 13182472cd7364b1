"""LayerNormalization written out by old exporters becomes the operator of opset 17."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import (
    array,
    integer_attribute,
    integers,
    is_op,
    made_by,
    only_reader,
    scalar,
    split_constant,
)
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant


@dataclasses.dataclass(frozen=True)
class _Norm:
    """``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)`` over the last ``depth`` axes."""

    source: ir.Value
    epsilon: float
    widths: tuple[int, ...]


def fuse_layer_norms(model: ir.Model) -> list[str]:
    """Rewrite the written-out LayerNorm; one operator is computed in FP32 inside by every compiler.

    Written out in FP16, the square of a value above 256 overflows, and a variance below 6e-8
    vanishes; LayerNormalization has ``stash_type`` FP32 for this.

    1. ``d / sqrt(v + e)``, ``d * reciprocal(sqrt(v + e))`` and ``d * (v + e) ** -0.5`` are known,
       with ``d * d`` or ``d ** 2`` below, also where ``d`` was computed twice.
    2. A Mul and an Add behind it with constants of the normalized shape become scale and bias;
       without them scale is ones.
    3. The axes must be the last ones and their sizes static. Over the channel axis of an image it
       stays written out.
    """
    taken = value_names(model)
    for node in list(model.graph):
        norm = _norm(node)
        if norm is not None and not node.outputs[0].is_graph_output():
            _rewrite(model.graph, node, norm, taken)
    return []


def _norm(node: ir.Node) -> _Norm | None:
    if not is_op(node, "Div", "Mul"):
        return None
    for deviation, other in ((0, 1), (1, 0)):
        sub = made_by(node.inputs[deviation], "Sub")
        variance = _under_root(node, other) if sub is not None else None
        if sub is not None and variance is not None:
            return _checked(sub, *variance)
        if node.op_type == "Div":
            break
    return None


def _under_root(node: ir.Node, index: int) -> tuple[ir.Node, float] | None:
    """Case 1: return (ReduceMean of the squares, epsilon) when the operand divides by their root."""
    value = node.inputs[index]
    if node.op_type == "Mul":
        inverse = made_by(value, "Reciprocal")
        if inverse is None:
            power = made_by(value, "Pow")
            if power is None or scalar(power.inputs[1]) != -0.5:
                return None
            return _plus_epsilon(power.inputs[0])
        value = inverse.inputs[0]
    root = made_by(value, "Sqrt")
    if root is not None:
        return _plus_epsilon(root.inputs[0])
    power = made_by(value, "Pow")
    if power is not None and scalar(power.inputs[1]) == 0.5:
        return _plus_epsilon(power.inputs[0])
    return None


def _plus_epsilon(value: ir.Value | None) -> tuple[ir.Node, float] | None:
    add = made_by(value, "Add")
    parts = split_constant(add) if add is not None else None
    if parts is None:
        return None
    mean, epsilon = made_by(parts[0], "ReduceMean"), scalar(parts[1])
    return (mean, epsilon) if mean is not None and epsilon is not None and epsilon > 0 else None


def _checked(sub: ir.Node, mean_square: ir.Node, epsilon: float) -> _Norm | None:
    source, mean = sub.inputs[0], made_by(sub.inputs[1], "ReduceMean")
    axes = _axes(mean_square)
    if source is None or mean is None or mean.inputs[0] is not source or source.shape is None:
        return None
    rank = len(source.shape)
    if axes is None or axes != _axes(mean) or not _squares(mean_square.inputs[0], sub):
        return None
    last = sorted(axis % rank for axis in axes)
    if last != list(range(rank - len(last), rank)):  # case 3
        return None
    widths = [source.shape[axis] for axis in last]
    if not all(isinstance(width, int) for width in widths):
        return None
    return _Norm(source, epsilon, tuple(width for width in widths if isinstance(width, int)))


def _axes(mean: ir.Node) -> list[int] | None:
    if integer_attribute(mean, "keepdims", 1) != 1:
        return None
    return integers(mean.inputs[1]) if len(mean.inputs) > 1 else None


def _squares(value: ir.Value | None, sub: ir.Node) -> bool:
    square = made_by(value, "Mul", "Pow")
    if square is None:
        return False
    if square.op_type == "Mul":
        return square.inputs[0] is square.inputs[1] and _is_deviation(square.inputs[0], sub)
    return scalar(square.inputs[1]) == 2 and _is_deviation(square.inputs[0], sub)


def _is_deviation(value: ir.Value | None, sub: ir.Node) -> bool:
    other = made_by(value, "Sub")
    if other is None or other.inputs[0] is not sub.inputs[0]:
        return False
    means = made_by(other.inputs[1], "ReduceMean"), made_by(sub.inputs[1], "ReduceMean")
    first, second = means
    if first is None or second is None:
        return False
    return first is second or (
        first.inputs[0] is second.inputs[0] and _axes(first) == _axes(second)
    )


def _rewrite(graph: ir.Graph, node: ir.Node, norm: _Norm, taken: set[str]) -> None:
    last, scale = _affine_behind(node, "Mul", norm.widths)
    last, bias = _affine_behind(last, "Add", norm.widths) if scale is not None else (last, None)
    dtype = (norm.source.dtype or ir.DataType.FLOAT).numpy()
    if scale is None:
        scale = new_constant(graph, "ones", np.ones(norm.widths, dtype), taken)
    fused = ir.node(
        "LayerNormalization",
        [norm.source, scale, *([bias] if bias is not None else [])],
        {"axis": -len(norm.widths), "epsilon": norm.epsilon, "stash_type": 1},
        name=node.name,
    )
    fused.metadata_props.update(node.metadata_props)
    old = last.outputs[0]
    fused.outputs[0].type, fused.outputs[0].shape = old.type, old.shape
    graph.insert_before(last, fused)
    old.replace_all_uses_with(fused.outputs[0])
    fused.outputs[0].name, old.name = old.name, None
    graph.remove(last, safe=True)  # onnx infers nothing where a node has no named output


def _affine_behind(
    node: ir.Node, op_type: str, widths: tuple[int, ...]
) -> tuple[ir.Node, ir.Value | None]:
    """Case 2: return the node behind and its constant, or ``node`` and None."""
    reader = only_reader(node.outputs[0])
    if reader is None or not is_op(reader, op_type) or reader.outputs[0].is_graph_output():
        return node, None
    parts = split_constant(reader)
    values = array(parts[1]) if parts is not None else None
    if parts is None or values is None or values.shape != widths:
        return node, None
    return reader, parts[1]
