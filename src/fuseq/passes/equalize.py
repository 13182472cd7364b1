"""Cross-layer equalization: bring the channels between layers to ranges that one weight scale serves.

Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019, section 4.1: for ``y = W2 f(W1 x + b1)`` with ``f(s x) = s f(x)`` for s > 0,

    W1[i] / s_i,  b1[i] / s_i,  W2[:, i] * s_i

leaves y as it is. The paper makes both ranges equal, ``s_i = sqrt(r1_i / r2_i)``; here s is what leaves
the least noise at the outputs (:mod:`fuseq.passes.channel_factors`), and all layers that write into
and read from one residual stream share it (:mod:`fuseq.placement.channel_classes`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.channel_factors import channel_factors
from fuseq.passes.notes import Note
from fuseq.placement.channel_classes import ChannelClass, channel_classes
from fuseq.placement.patterns import Weighted, weighted


def equalize(model: ir.Model) -> list[Note]:
    """Equalize the channels between the layers of a float model, in place; its outputs stay (to
    rounding).

    Returns:
        A note with the names of the layers that were equalized, and one with those behind which a
        Clip (ReLU6) stands: its bound is one for all channels, so that scales do not move through it.
    """
    bounded = [name for node in model.graph if (name := _behind_a_bound(node))]
    notes = []
    if bounded:
        text = f"not equalized: a Clip or ReLU6 bounds all channels alike behind {len(bounded)} layers."
        notes.append(Note(text, tuple(bounded)))
    classes = list(channel_classes(model.graph))
    if not classes:
        return notes
    for found, factors in zip(classes, channel_factors(model.graph, classes), strict=True):
        _scale(found, factors)
    layers = [layer for found in classes for layer in (*found.writers, *found.readers)]
    names = tuple(dict.fromkeys(_name(layer) for layer in layers))
    text = f"equalized {len(classes)} sets of channels between {len(names)} layers."
    return [Note(text, names), *notes]


def _behind_a_bound(node: ir.Node) -> str | None:
    """Name of a layer whose Clip alone keeps it from a pair."""
    first = weighted(node)
    reader = _next(node) if first is not None else None
    if reader is None or reader.op_type != "Clip" or (following := _next(reader)) is None:
        return None
    return node.name if weighted(following) is not None else None


def _next(node: ir.Node) -> ir.Node | None:
    """The only reader of the node's only output, as its data."""
    out = node.outputs[0]
    uses = list(out.uses())
    if len(uses) != 1 or uses[0].idx != 0 or out.is_graph_output() or len(node.outputs) > 1:
        return None
    return uses[0].node


def _scale(found: ChannelClass, factors: np.ndarray) -> None:
    for layer in found.writers:
        _store(layer.weight, _with_outputs(layer, _outputs(layer) / factors[:, None]))
        if layer.bias is not None:
            bias = _array(layer.bias)
            _store(layer.bias, (bias.reshape(-1) / factors).reshape(bias.shape))
    for layer in found.readers:
        _store(layer.weight, _with_inputs(layer, _inputs(layer) * factors[:, None]))


def _outputs(layer: Weighted) -> np.ndarray:
    """Weights by output channel: [O, ...] as [O, n]."""
    array = np.moveaxis(_array(layer.weight), layer.channel_axis, 0)
    return array.reshape(array.shape[0], -1)


def _with_outputs(layer: Weighted, rows: np.ndarray) -> np.ndarray:
    """The reverse of :func:`_outputs`."""
    shape = list(np.moveaxis(_array(layer.weight), layer.channel_axis, 0).shape)
    weight: np.ndarray = np.moveaxis(rows.reshape(shape), 0, layer.channel_axis)
    return weight


def _inputs(layer: Weighted) -> np.ndarray:
    """Weights by input channel, [I, n]: of a convolution [O, I/g, ...] channel i is column
    ``i mod I/g`` of the rows of group ``i // (I/g)``."""
    array = _by_group(layer)
    return array.reshape(array.shape[0] * array.shape[1], -1)


def _with_inputs(layer: Weighted, rows: np.ndarray) -> np.ndarray:
    """The reverse of :func:`_inputs`."""
    grouped = np.moveaxis(rows.reshape(_by_group(layer).shape), 2, 1)
    weight: np.ndarray = grouped[0] if layer.channel_axis == 0 else grouped[0].T
    return grouped.reshape(_array(layer.weight).shape) if layer.is_conv else weight


def _by_group(layer: Weighted) -> np.ndarray:
    """[groups, inputs of a group, outputs of a group, ...]."""
    array = _array(layer.weight)
    if not layer.is_conv:
        matrix = array if layer.channel_axis == 0 else array.T  # [O, I]
        return np.moveaxis(matrix[None], 2, 1)
    grouped = array.reshape(layer.groups, array.shape[0] // layer.groups, *array.shape[1:])
    return np.moveaxis(grouped, 2, 1)


def _array(value: ir.Value) -> np.ndarray:
    tensor = value.const_value
    assert tensor is not None  # a pair has constants only
    return np.asarray(tensor.numpy(), dtype=np.float64)


def _store(value: ir.Value, array: np.ndarray) -> None:
    tensor = value.const_value
    assert tensor is not None  # a pair has constants only
    stored = np.ascontiguousarray(array.astype(tensor.numpy().dtype))
    value.const_value = ir.Tensor(stored, dtype=tensor.dtype, name=value.name)


def _name(layer: Weighted) -> str:
    return layer.node.name or ""
