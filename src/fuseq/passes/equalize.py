"""Cross-layer equalization: bring the channels between two layers to ranges that one scale serves.

Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019, section 4.1: for ``y = W2 f(W1 x + b1)`` with ``f(s x) = s f(x)`` for s > 0,

    W1[i] / s_i,  b1[i] / s_i,  W2[:, i] * s_i   with   s_i = sqrt(r1_i r2_i) / r2_i

leaves y as it is, where ``r1_i = max |W1[i]|`` and ``r2_i = max |W2[:, i]|``; both become
``sqrt(r1_i r2_i)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fuseq.passes.notes import Note
from fuseq.placement.patterns import Weighted, weighted

MAX_ROUNDS = 20
"""Sweeps over all pairs; each brings neighbouring pairs nearer to each other."""

ENOUGH = 1e-3
"""A sweep that changes every channel by less than this part is the last."""

_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool"})
"""Operators with ``f(s x) = s f(x)`` channel by channel; Relu6 (Clip) is not one of them."""

_SMALLEST = 1e-12
"""Channels with smaller weights are left alone: they are zero, and no scale helps them."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two layers with nothing but homogeneous operators between them."""

    first: Weighted
    second: Weighted


def equalize(model: ir.Model) -> list[Note]:
    """Equalize every pair of layers of a float model, in place; its outputs stay (to rounding).

    1. Conv, Gemm and MatMul with constant weights; depthwise and grouped convolutions too.
    2. Between them Relu, LeakyRelu or pools, each read by one node only.
    3. Weights or biases that somebody else reads, and graph outputs in between, leave a pair as it is.

    Returns:
        A note with the names of the layers that were equalized, and one with those behind which a
        Clip (ReLU6) stands: its bound is one for all channels, so that scales do not move through it.
    """
    bounded = [name for node in model.graph if (name := _behind_a_bound(node))]
    notes = []
    if bounded:
        text = f"not equalized: a Clip or ReLU6 bounds all channels alike behind {len(bounded)} layers."
        notes.append(Note(text, tuple(bounded)))
    pairs = list(equalizable(model.graph))
    for _ in range(MAX_ROUNDS):
        changes = [_equalize(pair) for pair in pairs]
        if max(changes, default=0.0) < ENOUGH:
            break
    if not pairs:
        return notes
    names = tuple(dict.fromkeys(n for p in pairs for n in (_name(p.first), _name(p.second))))
    return [Note(f"equalized the channels between {len(pairs)} pairs of layers.", names), *notes]


def _behind_a_bound(node: ir.Node) -> str | None:
    """Name of a layer whose Clip alone keeps it from a pair."""
    first = weighted(node)
    reader = _next(node) if first is not None and _is_own(first) else None
    if reader is None or reader.op_type != "Clip" or (following := _next(reader)) is None:
        return None
    return node.name if weighted(following) is not None else None


def equalizable(graph: ir.Graph) -> Iterator[Pair]:
    """Pairs in graph order."""
    for node in graph:
        first = weighted(node)
        if first is None or not _is_own(first) or node.op_type == "ConvTranspose":
            continue
        reader = _next(node)
        while reader is not None and reader.op_type in _HOMOGENEOUS:
            reader = _next(reader)
        second = weighted(reader) if reader is not None else None
        if second is None or not _is_own(second) or second.node.op_type == "ConvTranspose":
            continue
        if first.is_conv == second.is_conv and len(_outputs(first)) == len(_inputs(second)):
            yield Pair(first, second)


def _next(node: ir.Node) -> ir.Node | None:
    """The only reader of the node's only output, as its data."""
    out = node.outputs[0]
    uses = list(out.uses())
    if len(uses) != 1 or uses[0].idx != 0 or out.is_graph_output() or len(node.outputs) > 1:
        return None
    return uses[0].node


def _is_own(layer: Weighted) -> bool:
    """Weight and bias are constants that nobody else reads (case 3)."""
    parts = [layer.weight] + ([layer.bias] if layer.bias is not None else [])
    return all(
        value.const_value is not None and len(value.uses()) == 1 and value.is_initializer()
        for value in parts
    )


def _equalize(pair: Pair) -> float:
    """Equalize once; returns the largest relative change of a channel."""
    first, second = _outputs(pair.first), _inputs(pair.second)
    r1 = np.abs(first).max(axis=1)
    r2 = np.abs(second).max(axis=1)
    usable = (r1 > _SMALLEST) & (r2 > _SMALLEST)
    scale = np.ones_like(r1)
    scale[usable] = np.sqrt(r1[usable] * r2[usable]) / r2[usable]
    _store(pair.first.weight, _with_outputs(pair.first, first / scale[:, None]))
    _store(pair.second.weight, _with_inputs(pair.second, second * scale[:, None]))
    if pair.first.bias is not None:
        bias = _array(pair.first.bias)
        _store(pair.first.bias, (bias.reshape(-1) / scale).reshape(bias.shape))
    return float(np.abs(scale - 1).max(initial=0.0))


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
