"""Keeps ONNX Runtime from quantizing by itself what a plan leaves in float between integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import is_op, made_by, only_reader
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant

_CHANNEL_AXIS = 1


def keep_planned_floats(model: ir.Model) -> list[str]:
    """Give float Conv, ConvTranspose and Gemm between two pairs a DequantizeLinear of their own.

    ONNX Runtime (1.22 and later, its WeightBiasQuantization) quantizes the weights of such a node
    itself, to eight bits with one scale for all, where its input comes from a DequantizeLinear with a
    scalar scale and its output, through Relu and Clip, goes to one QuantizeLinear. That undoes what
    the user excluded, and costs accuracy where no integer kernel exists. A DequantizeLinear with the
    same scale repeated for each channel gives the same numbers and is not touched. The model is
    changed in place; nodes whose number of channels is unknown stay as they are.
    """
    taken = value_names(model)
    for node in list(model.graph):
        if not is_op(node, "Conv", "ConvTranspose", "Gemm"):
            continue
        source = made_by(node.inputs[0], "DequantizeLinear")
        is_float = made_by(node.inputs[1], "DequantizeLinear") is None
        if source is None or not is_float or not _leads_to_quantize(node.outputs[0]):
            continue
        channels = _channels(source.outputs[0])
        if channels is not None:
            _repeat_scale(model.graph, node, source, channels, taken)
    return []


def _channels(value: ir.Value) -> int | None:
    if value.shape is None or len(value.shape) <= _CHANNEL_AXIS:
        return None
    size = value.shape[_CHANNEL_AXIS]
    return size if isinstance(size, int) else None


def _leads_to_quantize(value: ir.Value) -> bool:
    reader = only_reader(value)
    while reader is not None and is_op(reader, "Relu", "Clip"):
        reader = only_reader(reader.outputs[0])
    return reader is not None and is_op(reader, "QuantizeLinear")


def _repeat_scale(
    graph: ir.Graph, node: ir.Node, source: ir.Node, channels: int, taken: set[str]
) -> None:
    repeated = []
    for value in source.inputs[1:]:
        if value is None or value.const_value is None or value.const_value.size != 1:
            return
        whole = np.repeat(value.const_value.numpy().reshape(1), channels)
        repeated.append(new_constant(graph, f"{value.name}_repeated", whole, taken))
    own = ir.node(
        "DequantizeLinear",
        [source.inputs[0], *repeated],
        {"axis": _CHANNEL_AXIS},
        name=f"{node.name}_input_dequantize",
    )
    old, new = source.outputs[0], own.outputs[0]
    new.name, new.shape, new.type = f"{old.name}_for_{node.name}", old.shape, old.type
    graph.insert_before(node, own)
    node.replace_input_with(0, new)
    if not old.uses() and not old.is_graph_output():
        graph.remove(source, safe=True)
