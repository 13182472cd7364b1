"""Dropout does nothing at inference; exporters leave it, sometimes even in training mode."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def remove_dropouts(model: ir.Model) -> list[str]:
    """Replace every Dropout by its input.

    1. ``training_mode`` absent or false: the output is the input (ONNX Dropout-13).
    2. ``training_mode`` true: torch.onnx.export(dynamo=True) writes this for some encoders that are
       in eval mode. A quantized engine is for inference, so it is removed too, with a note.
    3. The mask output in use: it is all true at inference; it becomes Shape -> ConstantOfShape(true).

    A Dropout inside a subgraph stays as it is.
    """
    training = 0
    for node in list(model.graph):
        if node.op_type != "Dropout" or node.domain != "":
            continue
        data = node.inputs[0]
        if data is None:
            continue
        training += _in_training_mode(node)
        if len(node.outputs) > 1 and _is_read(node.outputs[1]):
            _replace_mask(model.graph, node, data)
        node.outputs[0].replace_all_uses_with(data, replace_graph_outputs=False)
        if node.outputs[0].is_graph_output():
            _become_identity(model.graph, node, data)
            continue
        model.graph.remove(node, safe=True)
    if not training:
        return []
    return [f"{training} Dropout nodes were in training mode; they are removed for inference."]


def _in_training_mode(node: ir.Node) -> bool:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    mode = ir.convenience.get_const_tensor(node.inputs[2])
    return mode is None or bool(mode.numpy().reshape(-1)[0])


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _replace_mask(graph: ir.Graph, node: ir.Node, data: ir.Value) -> None:
    shape = ir.node("Shape", [data])
    ones = ir.node(
        "ConstantOfShape", shape.outputs, {"value": ir.tensor(np.array([True]))}, outputs=None
    )
    mask = node.outputs[1]
    ones.outputs[0].dtype, ones.outputs[0].shape = ir.DataType.BOOL, data.shape
    ir.convenience.replace_nodes_and_values(
        graph, node, [], [shape, ones], [mask], [ones.outputs[0]]
    )


def _become_identity(graph: ir.Graph, node: ir.Node, data: ir.Value) -> None:
    same = ir.node("Identity", [data], name=node.name)
    same.outputs[0].type, same.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], [same], node.outputs[:1], same.outputs
    )
