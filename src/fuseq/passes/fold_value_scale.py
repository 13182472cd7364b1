"""A constant factor a channel behind attention moves into the projection that makes V."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import array, constant, is_op, made_by, only_reader, split_constant
from fuseq.passes.names import value_names
from fuseq.passes.quantized_weight import scale_weight
from fuseq.passes.splice import bypass, new_constant

_MOVES = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity")
_PICKS = ("Split", "Slice", "Gather")
_MOST_STEPS = 8
_MOST_ELEMENTS = 1 << 26
_OPEN_SIZE = 2
"""Stands for a size that is not known; with 1, rows could not be told from columns."""


@dataclasses.dataclass(frozen=True)
class _Projection:
    """The layer that makes V: MatMul with its Add, or Gemm; ``out`` is what it gives, [..., columns]."""

    layer: ir.Node
    add: ir.Node | None
    out: ir.Value


@dataclasses.dataclass(frozen=True)
class _Way:
    """From the projection over ``before`` to V, through the product, over ``after`` to the factor."""

    projection: _Projection
    before: tuple[tuple[ir.Node, ir.Value], ...]
    product: ir.Node
    after: tuple[tuple[ir.Node, ir.Value], ...]


def fold_value_scales(model: ir.Model, marked: Collection[ir.Value] = ()) -> list[str]:
    """Rewrite ``(softmax(s) @ (x @ W + b)) * m`` into ``softmax(s) @ (x @ (W * m) + b * m)``, in place.

    1. ``m`` varies along the last axis of the merged heads, or is one number. Equal but for rounding: the
       second product is linear in V, and a channel of its result comes from one channel of V.
    2. Which column of ``W`` becomes which channel is found by moving the numbers of the columns through
       the Reshape, Transpose, Split, Slice, Gather ... that stand there.
    3. W may make Q and K as well; nobody else reads its columns of V then.
    4. A weight behind DequantizeLinear: its scales are multiplied (:meth:`ScaledWeight.multiply`).

    SmoothQuant writes such a Mul before the output projection (NNCF: one a block of ViT), where it keeps
    the projection's Q out of the kernel of attention.

    Args:
        model: Constants are initializers, shapes known.
        marked: Values whose range is known, so that it must not change.
    """
    taken, opset = value_names(model), model.opset_imports.get("", 0)
    for node in list(model.graph):
        parts = split_constant(node) if is_op(node, "Mul") else None
        factor = array(parts[1]) if parts is not None else None
        if parts is None or factor is None or node.outputs[0].is_graph_output():
            continue
        if any(size != 1 for size in factor.shape[:-1]) or not factor.all():
            continue
        way = _way(parts[0], set(marked))
        columns = _columns(way, opset) if way is not None and np.isfinite(factor).all() else None
        if way is None or columns is None or factor.size not in (1, columns.size):
            continue
        if _multiply(model.graph, way.projection, columns, factor.reshape(-1), taken):
            bypass(model.graph, node, parts[0])
    return []


def _way(value: ir.Value, marked: Collection[ir.Value]) -> _Way | None:
    after, value = _back(value, _MOVES, marked)
    product = made_by(value, "MatMul")
    if product is None or only_reader(value) is None or value in marked:
        return None
    weights, own = product.inputs[:2]
    if made_by(weights, "Softmax") is None or own is None:
        return None
    before, start = _back(own, (*_MOVES, *_PICKS), marked)
    projection = _projection(start)
    if projection is None or start in marked:
        return None
    if projection.add is not None and projection.layer.outputs[0] in marked:
        return None
    return _Way(projection, tuple(reversed(before)), product, tuple(reversed(after)))


def _back(
    value: ir.Value, kinds: tuple[str, ...], marked: Collection[ir.Value]
) -> tuple[list[tuple[ir.Node, ir.Value]], ir.Value]:
    """Nodes that only move values, from ``value`` backwards, and what the first of them reads."""
    steps: list[tuple[ir.Node, ir.Value]] = []
    while len(steps) < _MOST_STEPS and value not in marked:
        node = made_by(value, *kinds)
        if node is None or node.inputs[0] is None:
            break
        if any(constant(each) is None for each in node.inputs[1:] if each is not None):
            break
        steps.append((node, value))
        value = node.inputs[0]
    return steps, value


def _projection(out: ir.Value) -> _Projection | None:
    """Cases 1 and 3; a bias must be a constant."""
    node = out.producer()
    add = node if node is not None and is_op(node, "Add") else None
    parts = split_constant(add) if add is not None else None
    layer = parts[0].producer() if parts is not None else node
    if layer is None or not is_op(layer, "MatMul", "Gemm"):
        return None
    if add is not None and (only_reader(layer.outputs[0]) is not add or is_op(layer, "Gemm")):
        return None
    bias = layer.inputs[2] if len(layer.inputs) > 2 else None
    weight = scale_weight(layer)
    if weight is None or len(weight.shape) != 2 or (bias is not None and constant(bias) is None):
        return None
    return _Projection(layer, add, out)


def _columns(way: _Way, opset: int) -> np.ndarray | None:
    """Case 2: the projection's column behind each channel of the factor, int64 [channels]."""
    sizes = _sizes_before(way)
    rows = _sizes(way.product.outputs[0])[-2:-1]
    if not sizes or not rows or np.prod(sizes, dtype=np.int64) > _MOST_ELEMENTS:
        return None
    numbers = np.broadcast_to(np.arange(sizes[-1]), sizes)
    try:
        own, others = _moved(numbers, way.before, opset)
        if own.ndim < 2 or (own != own[..., :1, :]).any():  # a channel of V is one column
            return None
        made = np.broadcast_to(own[..., :1, :], (*own.shape[:-2], *rows, own.shape[-1]))
        behind, strangers = _moved(made, way.after, opset)
    except (ValueError, RuntimeError, TypeError, IndexError):  # shapes that were only guessed
        return None
    channels = behind.reshape(-1, behind.shape[-1])
    found = np.asarray(channels[0])
    is_one = bool((channels == found).all()) and np.unique(found).size == found.size
    is_own = others is not None and not np.isin(others, own).any()  # case 3
    return found if is_one and is_own and strangers is not None and not strangers.size else None


def _moved(
    numbers: np.ndarray, steps: Sequence[tuple[ir.Node, ir.Value]], opset: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """``numbers`` behind ``steps``, and those that other readers see; None where that is not known."""
    seen: list[np.ndarray] = []
    for node, value in steps:
        source = node.inputs[0]
        others = {use.node for use in source.uses()} - {node} if source is not None else set()
        if source is None or source.is_graph_output():
            return numbers, None
        for other in others:
            if is_op(other, "Shape"):
                continue
            if not is_op(other, *_PICKS) or any(constant(v) is None for v in other.inputs[1:]):
                return numbers, None
            seen += _outputs(other, numbers, opset)
        made = _outputs(node, numbers, opset)
        index = node.outputs.index(value)
        seen += [each for at, each in enumerate(made) if at != index]
        numbers = made[index]
    last = steps[-1][1] if steps else None
    if last is not None and (last.is_graph_output() or not _read_once(last)):
        return numbers, None
    empty = np.empty(0, np.int64)
    return numbers, np.concatenate([each.reshape(-1) for each in seen]) if seen else empty


def _read_once(value: ir.Value) -> bool:
    return sum(not is_op(use.node, "Shape") for use in value.uses()) == 1


def _outputs(node: ir.Node, numbers: np.ndarray, opset: int) -> list[np.ndarray]:
    """What ``node`` makes of the column numbers, by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 (loads every operator)

    feeds: dict[str, np.ndarray] = {}
    for index, value in enumerate(node.inputs):
        tensor = constant(value) if index else None
        if value is not None:
            feeds[value.name or ""] = numbers if tensor is None else tensor.numpy()
    evaluator = ReferenceEvaluator(ir.serde.serialize_node(node), opsets={"": opset})
    return [np.asarray(each) for each in evaluator.run(None, feeds)]


def _sizes_before(way: _Way) -> tuple[int, ...]:
    """Sizes of the projection's output; an open one is what the first Reshape behind it makes of it."""
    sizes = _sizes(way.projection.out)
    dims = list(way.projection.out.shape or ())
    opened = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int)]
    if len(opened) != 1 or not way.before or not is_op(way.before[0][0], "Reshape"):
        return sizes
    total = int(np.prod(_sizes(way.before[0][1]), dtype=np.int64))
    rest = int(np.prod([size for axis, size in enumerate(sizes) if axis != opened[0]]))
    return tuple(total // rest if axis == opened[0] else size for axis, size in enumerate(sizes))


def _sizes(value: ir.Value) -> tuple[int, ...]:
    if value.shape is None:
        return ()
    return tuple(dim if isinstance(dim, int) else _OPEN_SIZE for dim in value.shape)


def _multiply(
    graph: ir.Graph, to: _Projection, columns: np.ndarray, factor: np.ndarray, taken: set[str]
) -> bool:
    """Multiply the projection's ``columns`` of weight and bias; False where the weight does not take it."""
    weight = scale_weight(to.layer)
    transposed = is_op(to.layer, "Gemm") and bool(to.layer.attributes.get_int("transB", 0))
    if weight is None:
        return False
    size = weight.shape[0 if transposed else 1]
    whole = np.ones(size)
    whole[columns] = factor
    if not weight.multiply(graph, whole.reshape((-1, 1) if transposed else (1, -1)), taken):
        return False
    node = to.add or to.layer
    for index, value in enumerate(node.inputs):
        tensor = constant(value)
        if tensor is None or value is None or (to.add is None and index != 2):
            continue
        made = (tensor.numpy().astype(np.float64) * whole).astype(tensor.dtype.numpy())
        node.replace_input_with(index, new_constant(graph, f"{value.name}_folded", made, taken))
    return True
