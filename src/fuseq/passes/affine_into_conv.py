"""Scalar factors and shifts in front of convolutions go into their weights and biases."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, is_op, only_reader, scalar, split_constant
from fuseq.passes.names import value_names
from fuseq.passes.quantized_weight import ScaledWeight, scale_weight
from fuseq.passes.splice import bypass, new_constant

_LARGEST = float(np.finfo(np.float32).max)


def affines_into_convs(model: ir.Model) -> list[str]:
    """Move scalars behind an activation into the convolutions that alone read it, in place.

    1. ``Conv(W, c * x) = Conv(c * W, x)``, also where a Conv pads with zeros. With a shift between,
       ``Conv(W, c * x + d) = Conv(c * W, x + d / c)``: the Add stays, the Mul goes.
    2. ``Conv(W, x + d) = Conv(W, x) + d * sum(W)`` where no reader pads: beside padding the sum is
       another one.

    Paddle's PP-LCNet has such a pair behind every HardSwish. Computed in float64. Weights behind
    DequantizeLinear, constants of more than one element and other readers leave it as it is.
    """
    taken = value_names(model)
    for node in list(model.graph):
        if node.graph is model.graph and is_op(node, "Mul"):
            _fold_factor(model.graph, node, taken)
    for node in list(model.graph):
        if node.graph is model.graph and is_op(node, "Add"):
            _fold_shift(model.graph, node, taken)
    return []


def _fold_factor(graph: ir.Graph, mul: ir.Node, taken: set[str]) -> None:
    """Case 1."""
    parts, factor = _scalar_operand(mul)
    if parts is None or not math.isfinite(factor) or factor == 0:
        return
    add = only_reader(mul.outputs[0])
    end, moved = mul, None
    if add is not None and is_op(add, "Add"):
        operands, shift = _scalar_operand(add)
        if operands is None:
            return
        moved, end = shift / factor, add
        if not abs(moved) <= _LARGEST:
            return
    convs = _convs_behind(graph, end.outputs[0])
    if not convs:
        return
    for weight in convs:
        weight.multiply(graph, np.full([1] * len(weight.shape), factor), taken)
    if moved is not None:
        index = 0 if constant(end.inputs[0]) is not None else 1
        name = f"{end.outputs[0].name}_shift"
        end.replace_input_with(
            index, new_constant(graph, name, np.asarray(moved, np.float32), taken)
        )
    bypass(graph, mul, parts[0])


def _fold_shift(graph: ir.Graph, add: ir.Node, taken: set[str]) -> None:
    """Case 2."""
    parts, shift = _scalar_operand(add)
    convs = _convs_behind(graph, add.outputs[0])
    if parts is None or not math.isfinite(shift) or not all(map(_can_shift, convs)) or not convs:
        return
    for weight in convs:
        array = weight.tensor.numpy().astype(np.float64)
        bias = shift * array.sum(axis=tuple(range(1, array.ndim)))
        node = weight.node
        known = constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if known is not None:
            bias = bias + known.numpy().astype(np.float64)
        made = new_constant(graph, f"{node.outputs[0].name}_bias", bias.astype(np.float32), taken)
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, made)
    bypass(graph, add, parts[0])


def _scalar_operand(node: ir.Node) -> tuple[tuple[ir.Value, ir.Value] | None, float]:
    """(Computed, constant) operands and the constant's one FP32 number; None where it is not so."""
    parts = split_constant(node)
    number = scalar(parts[1]) if parts is not None else None
    if parts is None or number is None or parts[0].dtype not in (None, ir.DataType.FLOAT):
        return None, 0.0
    held = constant(parts[1])
    known = parts[0].shape
    if held is None or held.dtype != ir.DataType.FLOAT or known is None:
        return None, 0.0
    return (parts, number) if len(held.shape) <= len(known) else (None, 0.0)


def _convs_behind(graph: ir.Graph, value: ir.Value) -> list[ScaledWeight]:
    """Float weights of the convolutions that read ``value``; empty where anything else does too."""
    if value.is_graph_output():
        return []
    found = []
    for use in value.uses():
        weight = scale_weight(use.node) if is_op(use.node, "Conv") and use.idx == 0 else None
        if weight is None or use.node.graph is not graph or weight.dequantize is not None:
            return []
        if weight.tensor.dtype != ir.DataType.FLOAT:
            return []
        found.append(weight)
    return found


def _can_shift(weight: ScaledWeight) -> bool:
    """The Conv pads nothing, and its bias is absent or constant."""
    node = weight.node
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    pads = [int(pad) for pad in node.attributes.get_ints("pads", ()) or ()]
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    is_known = not has_bias or constant(node.inputs[2]) is not None
    return is_known and (auto == "VALID" or (auto == "NOTSET" and not any(pads)))
