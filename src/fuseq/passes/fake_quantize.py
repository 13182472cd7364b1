"""Quantization written out as Div, Round, Clip, Mul becomes QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import array, is_op, only_reader, split_constant
from fuseq.passes.names import fresh, value_names
from fuseq.passes.repairs import Repair
from fuseq.passes.splice import new_constant, replace

_SAME_SCALE = 1e-5
"""Largest relative difference of the factors before and behind: 1 / s rounded to float32 twice."""

_INTEGERS: dict[tuple[float, float], ir.DataType] = {
    (-128, 127): ir.DataType.INT8,
    (-127, 127): ir.DataType.INT8,
    (0, 255): ir.DataType.UINT8,
    (0, 127): ir.DataType.UINT8,
    (-32768, 32767): ir.DataType.INT16,
    (-32767, 32767): ir.DataType.INT16,
    (0, 65535): ir.DataType.UINT16,
}
"""Type that stores the integers of a range. -127 to 127 is what symmetric quantizers cut at: a
value at the very edge may become -128 instead; 0 to 127 is half of UINT8."""


@dataclasses.dataclass(frozen=True)
class _Found:
    """One fake quantizer: its nodes in order, what it reads, scale, zero point, bounds."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    scale: np.ndarray
    zero_point: float
    bounds: tuple[float, float]


def fake_quantize_to_pairs(model: ir.Model) -> list[Repair]:
    """Find every Round of a fake quantizer and rewrite the nodes around it, in place.

    1. ``x / s`` or ``x * (1 / s)`` -> (``+ z``) -> Round -> (``+ z``) -> Clip, or Max and Min, to the
       range of a type -> (``- z``) -> ``* s`` or ``/ (1 / s)``: PyTorch's reference arithmetic
       (torch.fake_quantize_per_tensor_affine), Brevitas, LSQ and exporters that have no Q/DQ.
       The Clip may also stand before the Round.
    2. ``s`` is one number, or varies along one axis of ``x`` (shape [C, 1, 1, 1]).
    3. The factors before and behind must agree within 1e-5, or the nodes stay: it is no quantizer.
    4. Integers of fewer than 8 bits have no kernel here; the nodes stay, with a note.
    """
    taken = value_names(model)
    changed: list[str] = []
    left: list[Repair] = []
    for node in list(model.graph):
        found = _match(node) if is_op(node, "Round") else None
        if found is None:
            continue
        stored = _INTEGERS.get(found.bounds)
        last = found.nodes[-1]
        if stored is None:  # case 4
            text = (
                f"a quantizer to {found.bounds[0]:g} ... {found.bounds[1]:g} stays as it is written"
            )
            left.append(Repair("left", last.outputs[0].name or "", (node.name or "",), text))
            continue
        _rewrite(model.graph, found, stored, taken)
        changed.append(node.name or node.op_type)
    if changed:
        text = f"{len(changed)} quantizers written out as Mul, Round and Clip are Q/DQ pairs"
        left.insert(0, Repair("decomposed", "", tuple(changed), text))
    return left


def _match(middle: ir.Node) -> _Found | None:
    before = _upstream(middle)
    if before is None:
        return None
    first_nodes, source, inverse, zero_in, early = before
    behind = _downstream(middle, early is not None)
    if behind is None:
        return None
    last_nodes, scale, zero_out, zero_back, late = behind
    bounds = late or early
    zero = zero_in + zero_out
    if bounds is None or zero != zero_back or zero != round(zero):
        return None
    if scale.shape != inverse.shape and scale.size != inverse.size:
        return None
    agree = np.abs(scale * inverse.reshape(scale.shape) - 1) < _SAME_SCALE  # case 3
    if not (scale > 0).all() or not agree.all():
        return None
    return _Found((*first_nodes, middle, *last_nodes), source, scale, zero, bounds)


_Before = tuple[list[ir.Node], ir.Value, np.ndarray, float, "tuple[float, float] | None"]
_Behind = tuple[list[ir.Node], np.ndarray, float, float, "tuple[float, float] | None"]


def _upstream(middle: ir.Node) -> _Before | None:
    """Nodes before the Round, what they read, 1 / s, the zero point added, bounds."""
    nodes: list[ir.Node] = []
    zero, bounds = 0.0, None
    value = middle.inputs[0]
    for _ in range(4):
        node = value.producer() if value is not None else None
        if node is None or value is None or only_reader(value) is None:
            return None
        limit = _clip_of(node)
        if limit is not None:
            bounds = _tighter(bounds, limit)
            nodes.insert(0, node)
            value = node.inputs[0]
            continue
        parts = _with_constant(node)
        if parts is None:
            return None
        nodes.insert(0, node)
        source, factor = parts
        if is_op(node, "Add") and factor.size == 1:
            zero += float(factor.reshape(-1)[0])
            value = source
            continue
        if is_op(node, "Mul"):
            return nodes, source, factor, zero, bounds
        if is_op(node, "Div") and node.inputs[0] is source and factor.all():
            return nodes, source, 1 / factor, zero, bounds
        return None
    return None


def _downstream(middle: ir.Node, is_bounded: bool) -> _Behind | None:
    """Nodes behind the Round, s, the zero point added before the bounds, and the one taken off."""
    nodes: list[ir.Node] = []
    added, taken_off, bounds = 0.0, 0.0, None
    node = only_reader(middle.outputs[0])
    for _ in range(6):
        if node is None:
            return None
        nodes.append(node)
        limit = _clip_of(node)
        if limit is not None:
            bounds = _tighter(bounds, limit)
        else:
            parts = _with_constant(node)
            if parts is None:
                return None
            factor = parts[1]
            if is_op(node, "Mul"):
                return nodes, factor, added, taken_off, bounds
            if is_op(node, "Div") and node.inputs[0] is parts[0] and factor.all():
                return nodes, 1 / factor, added, taken_off, bounds
            if factor.size != 1 or not is_op(node, "Add", "Sub"):
                return None
            amount = float(factor.reshape(-1)[0]) * (1 if is_op(node, "Add") else -1)
            # What comes before the bounds is the zero point; what comes behind takes it off.
            if bounds is None and not is_bounded:
                added += amount
            else:
                taken_off -= amount
        node = only_reader(node.outputs[0])
    return None


def _clip_of(node: ir.Node) -> tuple[float, float] | None:
    if is_op(node, "Clip"):
        ends = [array(v, 1) if v is not None else None for v in [*node.inputs[1:], None, None][:2]]
        low, high = (float(e.reshape(-1)[0]) if e is not None else None for e in ends)
        return (-np.inf if low is None else low, np.inf if high is None else high)
    parts = _with_constant(node) if is_op(node, "Min", "Max") else None
    if parts is None or parts[1].size != 1:
        return None
    bound = float(parts[1].reshape(-1)[0])
    return (-np.inf, bound) if is_op(node, "Min") else (bound, np.inf)


def _tighter(one: tuple[float, float] | None, other: tuple[float, float]) -> tuple[float, float]:
    return other if one is None else (max(one[0], other[0]), min(one[1], other[1]))


def _with_constant(node: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """Split into what is quantized and the number it meets; a weight is a constant too."""
    parts = split_constant(node)
    if parts is None and len(node.inputs) == 2 and node.inputs[0] is not None:
        parts = (node.inputs[0], node.inputs[1]) if node.inputs[1] is not None else None
    factor = array(parts[1]) if parts is not None else None
    if parts is None or factor is None:
        return None
    return parts[0], factor.astype(np.float64)


def _rewrite(graph: ir.Graph, found: _Found, stored: ir.DataType, taken: set[str]) -> None:
    axes = [axis for axis, size in enumerate(found.scale.shape) if size > 1]
    per_tensor = found.scale.size == 1
    if not per_tensor and len(axes) != 1:
        return
    rank = len(found.source.shape) if found.source.shape is not None else found.scale.ndim
    attributes = {} if per_tensor else {"axis": axes[0] + rank - found.scale.ndim}
    flat = found.scale.astype(np.float32).reshape(() if per_tensor else (-1,))
    old = found.nodes[-1].outputs[0]
    base = found.source.name or "value"
    scale = new_constant(graph, f"{base}_scale", flat, taken)
    zero = new_constant(
        graph, f"{base}_zero_point",
        np.full(flat.shape, found.zero_point).astype(stored.numpy()), taken,
    )  # fmt: skip
    pair = [
        ir.node("QuantizeLinear", [found.source, scale, zero], attributes, name=f"{base}_quantize")
    ]
    pair[0].outputs[0].name = fresh(f"{base}_quantized", taken)
    pair[0].outputs[0].type, pair[0].outputs[0].shape = ir.TensorType(stored), found.source.shape
    pair.append(ir.node("DequantizeLinear", [pair[0].outputs[0], scale, zero], attributes))
    replace(graph, list(found.nodes), pair, [old], [pair[1].outputs[0]])
