"""BatchNormalization and constant scales and shifts fold into the weights in front of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from fuseq.passes.affine import Affine, affine_of
from fuseq.passes.matching import constant, float_attribute, integer_attribute, is_op, only_reader
from fuseq.passes.names import value_names
from fuseq.passes.quantized_weight import scale_weight
from fuseq.passes.splice import bypass, new_constant

Layout = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
"""(factor [channels] or [1], weight shape) -> factor that broadcasts against the weight."""


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A layer with constant weights: its bias, and how an output channel lies in the weight."""

    node: ir.Node
    channels: int
    axis_from_end: int
    layout: Layout
    bias: np.ndarray | None
    bias_factor: float = 1.0


def fold_affine(model: ir.Model) -> list[str]:
    """Fold what follows a layer alone into its weight and bias, in float64.

    1. Conv and ConvTranspose (any group), with or without bias: BatchNormalization, and Mul, Div,
       Add, Sub with a constant per channel: ``W * s``, ``b * s + t``.
    2. Gemm, any alpha and beta, with a bias per column: the same; beta is folded into the bias.
    3. MatMul with a constant weight, or MatMul and Add, whose result has two axes:
       BatchNormalization only (a scale behind MatMul may be one that training put there to keep
       weights in range: ConvNeXt's layer scale starts at 1e-6, which FP16 weights would not hold).
    4. A weight behind DequantizeLinear: its scales are multiplied instead (see ``scale_weight``).
    5. Weights that others read too are copied, and a fold repeats while something folds.

    onnxscript has rules for 1 and 2; they refuse shared weights, compute in the model's own type
    and know only scalars behind a Conv.
    """
    taken = value_names(model)
    for node in list(model.graph):
        while True:
            layer = _layer(node)
            reader = only_reader(node.outputs[0]) if layer is not None else None
            if layer is None or reader is None or not _fold(model.graph, layer, reader, taken):
                break
    return []


def _layer(node: ir.Node) -> _Layer | None:
    if not is_op(node, "Conv", "ConvTranspose", "Gemm", "MatMul"):
        return None
    weight = scale_weight(node)
    if weight is None or len(weight.shape) < 2:
        return None
    bias = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if len(node.inputs) > 2 and node.inputs[2] is not None and bias is None:
        return None
    values = bias.numpy() if bias is not None else None
    shape = weight.shape
    if node.op_type == "Conv":
        return _Layer(node, shape[0], len(shape) - 1, _first_axis, values)
    if node.op_type == "ConvTranspose":
        group = integer_attribute(node, "group", 1)
        return _Layer(node, shape[1] * group, len(shape) - 1, _grouped(group), values)
    if node.op_type == "MatMul":
        return _Layer(node, shape[-1], 1, _last_axis, None) if len(shape) == 2 else None
    layout = _first_axis if integer_attribute(node, "transB", 0) else _last_axis
    columns = shape[0] if layout is _first_axis else shape[1]
    if values is not None and values.size not in (1, columns):
        return None
    beta = float_attribute(node, "beta", 1.0)
    return _Layer(node, columns, 1, layout, values, beta)


def _fold(graph: ir.Graph, layer: _Layer, reader: ir.Node, taken: set[str]) -> bool:
    """Fold ``reader``, or the BatchNormalization behind the Add of a MatMul, into ``layer``."""
    if layer.node.op_type == "MatMul":
        return _fold_linear(graph, layer, reader, taken)
    affine = affine_of(reader, layer.channels, layer.axis_from_end)
    if affine is None or not np.isfinite(affine.scale).all():
        return False
    output = reader.outputs[0]
    if not _scale(graph, layer, affine, taken):
        return False
    bias = np.zeros(1) if layer.bias is None else layer.bias.astype(np.float64) * layer.bias_factor
    shifted = np.broadcast_to(bias.reshape(-1) * affine.scale + affine.shift, (layer.channels,))
    if layer.bias is not None or shifted.any():
        kind = _float_kind(layer.node)
        name = f"{layer.node.outputs[0].name}_bias"
        _set_input(layer.node, 2, new_constant(graph, name, shifted.astype(kind), taken))
    layer.node.attributes.pop("beta", None)
    layer.node.outputs[0].shape = layer.node.outputs[0].shape or output.shape
    return bypass(graph, reader, layer.node.outputs[0])


def _fold_linear(graph: ir.Graph, layer: _Layer, reader: ir.Node, taken: set[str]) -> bool:
    add = reader if is_op(reader, "Add") else None
    norm = only_reader(add.outputs[0]) if add is not None else reader
    if norm is None or not is_op(norm, "BatchNormalization"):
        return False
    rank = len(layer.node.outputs[0].shape or ())
    affine = affine_of(norm, layer.channels, 1) if rank == 2 else None
    before = (
        affine_of(add, layer.channels, 1) if add is not None else Affine(np.ones(1), np.zeros(1))
    )
    if affine is None or before is None or not _scale(graph, layer, affine, taken):
        return False
    shift = np.broadcast_to(before.shift * affine.scale + affine.shift, (layer.channels,))
    kind = _float_kind(layer.node)
    bias = new_constant(graph, f"{norm.outputs[0].name}_bias", shift.astype(kind), taken)
    if add is None:
        add = ir.node("Add", [layer.node.outputs[0], bias], name=norm.name)
        add.metadata_props.update(norm.metadata_props)
        add.outputs[0].type, add.outputs[0].shape = norm.outputs[0].type, norm.outputs[0].shape
        graph.insert_before(norm, add)
    else:
        index = 0 if constant(add.inputs[0]) is not None else 1
        add.replace_input_with(index, bias)
    return bypass(graph, norm, add.outputs[0])


def _scale(graph: ir.Graph, layer: _Layer, affine: Affine, taken: set[str]) -> bool:
    """Multiply the weight by ``affine.scale`` per output channel; False where it cannot be."""
    weight = scale_weight(layer.node)
    if weight is None or (affine.scale == 1).all():
        return weight is not None
    factor = layer.layout(np.broadcast_to(affine.scale, (layer.channels,)), weight.shape)
    return weight.multiply(graph, factor, taken)


def _first_axis(factor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return factor.reshape(-1, *[1] * (len(shape) - 1))


def _last_axis(factor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return factor.reshape(*[1] * (len(shape) - 1), -1)


def _grouped(group: int) -> Layout:
    """ConvTranspose weight [in, out / group, *kernel]: input block g makes output block g."""

    def layout(factor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if group == 1:
            return factor.reshape(1, -1, *[1] * (len(shape) - 2))
        blocks = factor.reshape(group, 1, shape[1])
        spread = np.broadcast_to(blocks, (group, shape[0] // group, shape[1]))
        return spread.reshape(shape[0], shape[1], *[1] * (len(shape) - 2))

    return layout


def _float_kind(node: ir.Node) -> np.dtype[np.generic]:
    dtype = node.outputs[0].dtype or ir.DataType.FLOAT
    return dtype.numpy()


def _set_input(node: ir.Node, index: int, value: ir.Value) -> None:
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
