"""Step 1: a copy of the model in the form that the optimizer's rules are written for.

1. Functions are inlined, constants lifted and folded, dropouts and identities removed, and every
   value gets the static shape that the profile gives it.
2. Split becomes one slice an output, as the ONNX parser imports it.
3. DequantizeLinear is copied to each of its readers, because each fuses it or not on its own.
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.errors import TargetError
from fuseq.passes.clean import fold_constants, lift_constants
from fuseq.passes.dropout import remove_dropouts
from fuseq.passes.shapes import infer_shapes
from fuseq.targets.base import ShapeProfile
from fuseq.targets.tensorrt.quantization import is_dequantize

_ORIGIN = "fuseq.origin"
_COPIES = "fuseq.copies"


def prepare(model: ir.Model, profile: ShapeProfile) -> ir.Model:
    """Copy ``model`` (weights are shared, not copied) and bring the copy into form.

    Raises:
        TargetError: The profile lacks an input with symbolic dimensions.
    """
    copy = model.clone()
    lift_constants(copy)
    remove_dropouts(copy)
    _fix_input_shapes(copy, profile)
    for node in copy.graph:
        for value in node.outputs:
            value.shape = None
    fold_constants(copy)
    if any(value.shape is None for node in copy.graph for value in node.outputs):
        infer_shapes(copy)
    for node in list(copy.graph):
        if node.op_type == "Split":
            _split_to_slices(copy.graph, node)
        elif is_dequantize(node):
            _copy_to_readers(copy.graph, node)
    return copy


def origin(node: ir.Node) -> str:
    """Name of the node in the user's model; copies keep the name of what they were copied from."""
    return str(node.meta.get(_ORIGIN, node.name or ""))


def copy_node(
    graph: ir.Graph, node: ir.Node, inputs: list[ir.Value | None], before: ir.Node
) -> ir.Node:
    """Put a copy of the one-output ``node``, with other inputs, before another node."""
    number = graph.meta[_COPIES] = int(graph.meta.get(_COPIES, 0)) + 1
    name = f"{origin(node)}_copy_{number}"
    twin = ir.Node(node.domain, node.op_type, inputs, list(node.attributes.values()), name=name)
    twin.meta[_ORIGIN] = origin(node)
    describe(twin.outputs[0], f"{name}_out", node.outputs[0])
    graph.insert_before(before, twin)
    return twin


def describe(value: ir.Value, name: str, like: ir.Value, dtype: ir.DataType | None = None) -> None:
    """Give a new value a name, and the shape and type of another."""
    value.name = name
    value.shape = like.shape
    value.type = ir.TensorType(dtype) if dtype is not None else like.type


def _fix_input_shapes(model: ir.Model, profile: ShapeProfile) -> None:
    for value in model.graph.inputs:
        shape = profile.optimum.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(shape)
        elif value.shape is None or not value.shape.is_static():
            raise TargetError(
                f"input {value.name!r} has no static shape in the profile; give --shape "
                f"{value.name}:N,C,H,W."
            )


def _split_to_slices(graph: ir.Graph, node: ir.Node) -> None:
    """``y0, y1 = Split(x)`` becomes ``y0 = Slice(x); y1 = Slice(x)``; the bounds are not needed."""
    for number, output in enumerate(node.outputs):
        twin = ir.Node("", "Slice", node.inputs[:1], name=f"{node.name}_{number}")
        twin.meta[_ORIGIN] = origin(node)
        describe(twin.outputs[0], f"{output.name}", output)
        graph.insert_before(node, twin)
        output.name = f"{output.name}_split"
        ir.convenience.replace_all_uses_with(output, twin.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _copy_to_readers(graph: ir.Graph, node: ir.Node) -> None:
    uses = list(node.outputs[0].uses())
    keeps = not node.outputs[0].is_graph_output()
    for use in uses[1:] if keeps else uses:
        twin = copy_node(graph, node, list(node.inputs), node)
        use.node.replace_input_with(use.idx, twin.outputs[0])
