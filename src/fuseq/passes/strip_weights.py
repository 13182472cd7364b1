"""Fold stored weights and biases back to float, bit for bit, and keep their scales."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.passes.found_scales import Mark
from fuseq.passes.matching import constant, is_op, only_reader
from fuseq.passes.names import value_names
from fuseq.passes.quantizers import (
    Quantizer,
    dequantized_values,
    is_dequantize,
    is_quantize,
    quantized_values,
    read_quantizer,
)
from fuseq.passes.repairs import Repair
from fuseq.passes.splice import new_constant
from fuseq.placement.plan import Kind

_LAYOUTS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


@dataclasses.dataclass
class Weights:
    """The pass's state: where it is and what it found."""

    graph: ir.Graph
    taken: set[str]
    marks: list[Mark] = dataclasses.field(default_factory=list)
    repairs: list[Repair] = dataclasses.field(default_factory=list)


def strip_weights(model: ir.Model) -> tuple[list[Mark], list[Repair]]:
    """Replace every DequantizeLinear of a constant by a float32 initializer, in place.

    1. DQ of stored integers or FP8: ``(q - z) * scale`` in float32; quantizing the initializer with
       the kept scale gives the stored values again.
    2. Q -> DQ of a float weight: the weight is quantized first, so that the initializer holds what
       the file computes with.
    3. Operators behind it that only move values (Transpose, Reshape ...) are folded too, and the
       axis of the scales follows. Any axis folds (Conv, ConvTranspose, MatMul).
    4. INT32: a bias.
    5. An unusable scale: the float weight of case 2 as it is; stored integers lose the channels
       whose scale is not finite, which become 0.
    """
    state = Weights(model.graph, value_names(model))
    for node in list(model.graph):
        if is_dequantize(node) and node.graph is model.graph:
            _fold(state, node)
    return state.marks, state.repairs


def _fold(state: Weights, node: ir.Node) -> None:
    stored = node.inputs[0]
    maker = stored.producer() if stored is not None else None
    quantize = maker if is_quantize(maker) else None
    original = quantize.inputs[0] if quantize is not None else stored
    tensor = constant(original)
    if original is None or tensor is None:
        return
    by = read_quantizer(node)
    names = tuple(each.name or "" for each in (quantize, node) if each is not None)
    if isinstance(by, str):
        text = f"{node.op_type} {node.name!r} stays: {by}"
        state.repairs.append(Repair("left", node.outputs[0].name or "", names, text))
        return
    values = tensor.numpy()
    if by.problem:
        array = values.astype(np.float32) if quantize is not None else _without_bad(values, by)
        text = f"{by.problem} ({', '.join(names)}); its scale is computed again from the weight"
        state.repairs.append(Repair("bad scale", original.name or "", names, text))
    else:
        integers = quantized_values(values, by) if quantize is not None else values
        array = dequantized_values(integers, by)
    last, array, by = _behind_layouts(state.graph, node, array, by)
    _replace(state, last, array, by, original, names)


def _without_bad(values: np.ndarray, by: Quantizer) -> np.ndarray:
    usable = np.where(np.isfinite(by.scale), by.scale, 0).astype(np.float32)
    return dequantized_values(values, dataclasses.replace(by, scale=usable))


def _behind_layouts(
    graph: ir.Graph, node: ir.Node, array: np.ndarray, by: Quantizer
) -> tuple[ir.Node, np.ndarray, Quantizer]:
    """Case 3: the last operator that only moves the weight, the weight there, and its axis."""
    last = node
    while True:
        reader = only_reader(last.outputs[0])
        if reader is None or reader.graph is not graph or not is_op(reader, *_LAYOUTS):
            return last, array, by
        moved = _moved(reader, array)
        if moved is None:
            return last, array, by
        if by.axis is not None:
            axis = _axis_behind(reader, array.shape, by)
            if axis is None:
                return last, array, by
            by = dataclasses.replace(by, axis=axis)
        last, array = reader, moved


def _moved(node: ir.Node, array: np.ndarray) -> np.ndarray | None:
    if node.op_type == "Transpose":
        perm = node.attributes.get("perm")
        return np.transpose(array, None if perm is None else list(perm.as_ints()))
    shape = node.outputs[0].shape
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    target = tuple(shape.numpy())
    return array.reshape(target) if np.prod(target, dtype=np.int64) == array.size else None


def _axis_behind(node: ir.Node, shape: tuple[int, ...], by: Quantizer) -> int | None:
    """Where the channels lie behind ``node``: move the channel's number and see what it varies along."""
    axis = by.axis or 0
    numbers = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    moved = _moved(node, np.broadcast_to(numbers, shape))
    if moved is None:
        return None
    for candidate in range(moved.ndim):
        if moved.shape[candidate] != shape[axis]:
            continue
        expected = np.arange(shape[axis]).reshape(
            [-1 if a == candidate else 1 for a in range(moved.ndim)]
        )
        if (moved == expected).all():
            return candidate
    return None


def _replace(
    state: Weights,
    last: ir.Node,
    array: np.ndarray,
    by: Quantizer,
    original: ir.Value,
    names: tuple[str, ...],
) -> None:
    graph, out = state.graph, last.outputs[0]
    if out.is_graph_output():
        return
    readers = tuple((use.node, use.idx) for use in out.uses() if use.node.graph is graph)
    name = (original.name or "weight").removesuffix("_quantized")
    value = new_constant(graph, name, np.ascontiguousarray(array), state.taken)
    out.replace_all_uses_with(value)
    _remove_dead(graph, last)
    if not original.uses() and not original.is_graph_output() and not original.is_graph_input():
        del graph.initializers[original.name or ""]
        state.taken.discard(original.name or "")
    if value.name != name and name not in state.taken:
        value.name = name
        state.taken.add(name)
    if not by.problem:
        kind: Kind = "bias" if by.stored == ir.DataType.INT32 else "weight"
        state.marks.append(Mark(by, kind, value, readers, (), names))


def _remove_dead(graph: ir.Graph, last: ir.Node) -> None:
    """Remove ``last`` and what stands before it, as long as nobody else reads it."""
    node: ir.Node | None = last
    while node is not None and not node.outputs[0].uses():
        before = node.inputs[0].producer() if node.inputs[0] is not None else None
        graph.remove(node, safe=True)
        node = before
