"""Mends that give a tensor another scale. All but the floor are unsafe: values are rounded elsewhere."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.calibration.formulas import SMALLEST_SCALE
from fuseq.checks.finding import Finding
from fuseq.checks.mends import layer_of, node_of
from fuseq.checks.reading import Layer, dequantizer, float_source, layers_of, quantizer
from fuseq.passes.drop_pair import drop_pair
from fuseq.passes.matching import constant
from fuseq.passes.names import value_names
from fuseq.passes.quantizers import (
    STORED_RANGES,
    Quantizer,
    is_dequantize,
    is_quantize,
    read_quantizer,
)
from fuseq.passes.rescale import set_pair, store_weight, weight_values
from fuseq.passes.strip_activations import Activations, saturated
from fuseq.placement.patterns import copies_values

_FLOOR = SMALLEST_SCALE[ir.DataType.FLOAT16]
_LARGEST_HALF = 65504.0


def symmetric(values: np.ndarray, stored: ir.DataType, axis: int | None) -> Quantizer:
    """A quantizer with ``scale = amax / qmax`` and zero point 0, one scale or one a channel of ``axis``."""
    rows = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 0)
    amax = np.abs(rows.reshape(rows.shape[0], -1)).max(1, initial=0.0)
    scale = np.where(amax > 0, amax / STORED_RANGES[stored][2], 1.0).astype(np.float32)
    scale = scale.reshape(() if axis is None else (-1,))
    return Quantizer(scale, np.zeros(scale.shape, np.int64), stored, axis)


def raise_to_half(model: ir.Model, finding: Finding) -> str:
    """FQ302: scales below FP16's smallest normal number become it; stored weights are rounded again."""
    readers = [
        node
        for node in model.graph
        if (is_quantize(node) or is_dequantize(node))
        and len(node.inputs) > 1
        and node.inputs[1] is not None
        and node.inputs[1].name == finding.tensor
    ]
    done = 0
    for node in readers:
        by = read_quantizer(node)
        if isinstance(by, str) or by.problem or (by.scale > _LARGEST_HALF).any():
            continue
        raised = dataclasses.replace(by, scale=np.asarray(np.maximum(by.scale, np.float32(_FLOOR))))
        if is_quantize(node) and constant(node.inputs[0]) is None:
            done += set_pair(model.graph, node, raised)
        elif is_dequantize(node) and weight_values(node) is not None:
            done += store_weight(model.graph, node, raised)
    return f"scales below {_FLOOR:.2g} are {_FLOOR:.2g}" if done else ""


def drop_or_recompute(model: ir.Model, finding: Finding) -> str:
    """FQ301: a float weight gets its scale from its values; an activation stays float."""
    node = node_of(model, finding)
    if node is None or not (is_quantize(node) or is_dequantize(node)):
        return ""
    pairs = [use.node for use in node.outputs[0].uses()] if is_quantize(node) else [node]
    by = read_quantizer(node)
    if isinstance(by, str):
        return ""
    done = 0
    for dequantize in [pair for pair in pairs if is_dequantize(pair)]:
        values = weight_values(dequantize)
        if values is not None and np.isfinite(values).all():
            done += store_weight(model.graph, dequantize, symmetric(values, by.stored, by.axis))
        elif quantizer(dequantize) is not None:
            usable = dataclasses.replace(by, scale=np.ones_like(by.scale))
            set_pair(model.graph, node, usable)  # so that the pair can be read
            done += drop_pair(model.graph, dequantize)
    return "the weight's scale is computed from it, or the activation is float" if done else ""


def recentre(model: ir.Model, finding: Finding) -> str:
    """FQ202: INT8 with zero point 0. UINT8 around 128 keeps every value; others get the larger half."""
    node = node_of(model, finding)
    by = read_quantizer(node) if node is not None else "gone"
    if node is None or isinstance(by, str) or by.problem or by.format.endswith("16"):
        return ""
    low = (by.qmin - by.zero_point) * by.scale.astype(np.float64)
    high = (by.qmax - by.zero_point) * by.scale.astype(np.float64)
    is_moved = bool((by.zero_point == (by.qmin + by.qmax + 1) / 2).all())
    scale = by.scale if is_moved else (np.maximum(-low, high) / 127).astype(np.float32)
    new = Quantizer(
        np.asarray(scale, np.float32), np.zeros(by.scale.shape, np.int64), ir.DataType.INT8, by.axis
    )
    what = "the same integers less 128" if is_moved else "the larger half of its range"
    if is_dequantize(node):
        done = weight_values(node) is not None and store_weight(model.graph, node, new)
        return f"int8 with zero point 0: {what}" if done else ""
    source = node.inputs[0]
    if source is None or not all(is_dequantize(use.node) for use in node.outputs[0].uses()):
        return ""
    if constant(source) is not None:
        stored = [store_weight(model.graph, use.node, new) for use in list(node.outputs[0].uses())]
        return f"int8 with zero point 0: {what}" if all(stored) else ""
    state = Activations(model.graph, value_names(model))
    clipped = saturated(state, source, by, [node.name or ""])
    if not set_pair(model.graph, node, new):
        return ""
    node.replace_input_with(0, clipped)
    cut = "; a Clip does what its cut at 0 did" if clipped is not source else ""
    return f"int8 with zero point 0: {what}{cut}"


def one_scale_around(model: ir.Model, finding: Finding) -> str:
    """FQ107: every pair around an operator that only moves values gets the largest scale."""
    node = node_of(model, finding)
    if node is None or not copies_values(node):
        return ""
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    before = [q for v in inputs if (d := dequantizer(v)) is not None and (q := quantizer(d))]
    behind = [u.node for out in node.outputs for u in out.uses() if is_quantize(u.node)]
    return _largest(model.graph, list(dict.fromkeys([*before, *behind])))


def share_one_pair(model: ir.Model, finding: Finding) -> str:
    """FQ113: all pairs of one tensor get the largest scale, and readers of the others read the first."""
    node = node_of(model, finding)
    value = node.inputs[0] if node is not None else None
    if value is None:
        return ""
    pairs = [u.node for u in value.uses() if is_quantize(u.node) and u.idx == 0]
    said = _largest(model.graph, pairs)
    first = pairs[0].outputs[0]
    for other in pairs[1:] if said else ():
        other.outputs[0].replace_all_uses_with(first)
        model.graph.remove(other, safe=True)
    return said


def one_merged_scale(model: ir.Model, finding: Finding) -> str:
    """FQ108: the weights that read one tensor are stored with the largest of their scales."""
    layer = layer_of(model, finding)
    if layer is None:
        return ""
    source = float_source(layer.data)
    merged = [
        each
        for each in layers_of(model.graph)
        if not each.is_conv and each.is_quantized and float_source(each.data) is source
    ]
    nodes = [each.weight_dequantize for each in merged]
    found = [by for n in nodes if n is not None and isinstance(by := read_quantizer(n), Quantizer)]
    if len(found) < 2 or len({by.stored for by in found}) > 1 or any(by.axis for by in found):
        return ""
    largest = max(found, key=lambda by: float(by.scale.max()))
    done = [n is not None and store_weight(model.graph, n, largest) for n in nodes]
    return f"{sum(done)} weights have the scale {float(largest.scale.max()):.6g}" if done else ""


def one_weight_scale(model: ir.Model, finding: Finding) -> str:
    """FQ111: one scale for the whole weight."""
    return _store_along(model, layer_of(model, finding), None)


def right_axis(model: ir.Model, finding: Finding) -> str:
    """FQ303: one scale an output channel. A weight that is transposed behind its DQ is left."""
    layer = layer_of(model, finding)
    if layer is None or layer.weight_dequantize is not layer.steps[-1]:
        return ""
    return _store_along(model, layer, layer.channel_axis)


def _store_along(model: ir.Model, layer: Layer | None, axis: int | None) -> str:
    node = layer.weight_dequantize if layer is not None else None
    by = read_quantizer(node) if node is not None else "no pair"
    values = weight_values(node) if node is not None else None
    if node is None or values is None or isinstance(by, str):
        return ""
    store_weight(model.graph, node, symmetric(values, by.stored, axis))
    return "one scale for the weight" if axis is None else f"one scale a channel of axis {axis}"


def _largest(graph: ir.Graph, quantizes: list[ir.Node]) -> str:
    """Give these Q and their DQ the largest of their scales; "" where they cannot be compared."""
    found = [by for node in quantizes if isinstance(by := read_quantizer(node), Quantizer)]
    if len(found) < len(quantizes) or len(found) < 2 or len({by.stored for by in found}) > 1:
        return ""
    if any(by.axis is not None or by.zero_point.any() or by.problem for by in found):
        return ""
    largest = max(found, key=lambda by: float(by.scale))
    if not all(is_dequantize(use.node) for q in quantizes for use in q.outputs[0].uses()):
        return ""
    for node in quantizes:
        set_pair(graph, node, largest)
    return f"{len(quantizes)} pairs have the scale {float(largest.scale):.6g}"
