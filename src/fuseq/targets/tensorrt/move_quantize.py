"""Step 2: Q moves backward and DQ forward, so that more of the graph is in low precision.

Source: TensorRT documentation, "Explicit Quantization", "TensorRT Processing of Q/DQ Networks":
Quantize nodes are propagated backward and Dequantize nodes forward over layers that commute with
them. Names in brackets are the passes of TensorRT's verbose log.

1. DQ -> Q with one scale cancel.
2. Q of one scale on one tensor are one [HorizontalMergeQNodes].
3. Q behind a commuting layer whose only reader it is moves before it [VanillaSwapWithFollowingQ];
   behind Concat it is copied to each branch [SplitQAcrossPrecedingFanIn], before Slice it moves when
   one scale serves all slices.
4. DQ before a commuting layer, all of whose inputs have one scale, moves behind it.
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.targets.tensorrt.operators import commutes, data_inputs
from fuseq.targets.tensorrt.prepare import copy_node, describe
from fuseq.targets.tensorrt.quantization import (
    Scaling,
    dequantizer,
    is_dequantize,
    is_quantize,
    only_reader,
    scaling_of,
)

_CLONED = "fuseq.cloned_across_concat"


def move_quantization(graph: ir.Graph) -> None:
    """Apply the cases until none fits; each moves a Q toward the inputs or a DQ toward the outputs."""
    work = [node for node in graph if is_quantize(node) or is_dequantize(node)]
    while work:
        node = work.pop()
        if node.graph is not graph:
            continue  # another case has removed it
        if is_quantize(node):
            work += _step_quantize(graph, node)
        else:
            work += _step_dequantize(graph, node)


def is_cloned(node: ir.Node) -> bool:
    """The Q stood behind a Concat in the model and was copied to the branches."""
    return bool(node.meta.get(_CLONED, False))


def _step_quantize(graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    source = node.inputs[0]
    if source is None:
        return []
    scaling = scaling_of(node)
    before = dequantizer(source)
    if before is not None and scaling_of(before) == scaling:  # case 1
        _replace(graph, node, before.inputs[0])
        _remove_unread(graph, before)
        return []
    twin = _twin(node, source, scaling)
    if twin is not None:  # case 2
        _replace(graph, node, twin.outputs[0])
        return [twin]
    producer = source.producer()
    if producer is None or scaling.axis is not None or only_reader(source) is not node:
        return []
    if not _can_swap(producer):
        return []
    siblings = _sliced_alike(producer, scaling) if producer.op_type == "Slice" else []
    if siblings is None:
        return []
    return [*_swap_with_quantize(graph, producer, node), *siblings]  # case 3


def _twin(node: ir.Node, source: ir.Value, scaling: Scaling) -> ir.Node | None:
    for use in source.uses():
        other = use.node
        if other is node or use.idx != 0 or not is_quantize(other):
            continue
        if scaling_of(other) == scaling:
            return other
    return None


def _sliced_alike(node: ir.Node, scaling: Scaling) -> list[ir.Node] | None:
    """Q of the other slices of the same tensor, if all have one scale, so that one Q serves them.

    None when they do not: each slice then keeps its own Q, and less is quantized.
    """
    source = node.inputs[0]
    found: list[ir.Node] = []
    if source is None or source.is_graph_output():
        return None
    for use in source.uses():
        reader = only_reader(use.node.outputs[0]) if use.node.op_type == "Slice" else use.node
        if reader is None or not is_quantize(reader) or scaling_of(reader) != scaling:
            return None
        found.append(reader)
    return found


def _can_swap(node: ir.Node) -> bool:
    """It commutes, gives one tensor, and moves something that is computed."""
    extra = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    values = data_inputs(node)
    return commutes(node) and not extra and not any(value.is_initializer() for value in values)


def _swap_with_quantize(graph: ir.Graph, producer: ir.Node, node: ir.Node) -> list[ir.Node]:
    """``Q(op(x))`` becomes ``op(Q(x))``."""
    moved = []
    quantized = node.outputs[0]
    for index in _data_indices(producer):
        value = producer.inputs[index]
        assert value is not None
        inner = copy_node(graph, node, [value, *node.inputs[1:]], producer)
        describe(inner.outputs[0], inner.outputs[0].name or "", value, quantized.dtype)
        if producer.op_type == "Concat" or is_cloned(node):
            inner.meta[_CLONED] = True
        producer.replace_input_with(index, inner.outputs[0])
        moved.append(inner)
    producer.outputs[0].type = quantized.type
    _replace(graph, node, producer.outputs[0])
    return moved


def _step_dequantize(graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    reader = only_reader(node.outputs[0])
    if reader is None:
        return []
    scaling = scaling_of(node)
    if is_quantize(reader):
        return [reader] if scaling_of(reader) == scaling else []  # case 1
    if scaling.axis is not None or not _can_swap(reader):
        return []
    pairs = [dequantizer(value) for value in data_inputs(reader)]
    if node not in pairs:
        return []
    for pair in pairs:
        if (
            pair is None
            or only_reader(pair.outputs[0]) is not reader
            or scaling_of(pair) != scaling
        ):
            return []
    return _swap_with_dequantize(graph, reader, node)  # case 4


def _swap_with_dequantize(graph: ir.Graph, reader: ir.Node, node: ir.Node) -> list[ir.Node]:
    """``op(DQ(x))`` becomes ``DQ(op(x))``, with one DQ for each reader of the result."""
    output = reader.outputs[0]
    real_type, quantized = output.type, node.inputs[0]
    scales = list(node.inputs[1:])
    moved = []
    for use in list(output.uses()):
        twin = copy_node(graph, node, [output, *scales], use.node)
        describe(twin.outputs[0], twin.outputs[0].name or "", output)
        use.node.replace_input_with(use.idx, twin.outputs[0])
        moved.append(twin)
    if output.is_graph_output():
        moved.append(_dequantize_output(graph, reader, node, scales))
    for index in _data_indices(reader):
        pair = dequantizer(reader.inputs[index])
        if pair is not None:
            reader.replace_input_with(index, pair.inputs[0])
            _remove_unread(graph, pair)
    output.type = quantized.type if quantized is not None else real_type
    return moved


def _dequantize_output(
    graph: ir.Graph, reader: ir.Node, node: ir.Node, scales: list[ir.Value | None]
) -> ir.Node:
    output = reader.outputs[0]
    twin = copy_node(graph, node, [output, *scales], reader)
    graph.remove(twin)
    graph.insert_after(reader, twin)
    describe(twin.outputs[0], f"{output.name}_float", output)
    for number, value in enumerate(graph.outputs):
        if value is output:
            graph.outputs[number] = twin.outputs[0]
    return twin


def _data_indices(node: ir.Node) -> list[int]:
    return list(range(len(node.inputs))) if node.op_type == "Concat" else [0]


def _replace(graph: ir.Graph, node: ir.Node, value: ir.Value | None) -> None:
    if value is None:
        return
    old = node.outputs[0]
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _remove_unread(graph: ir.Graph, node: ir.Node) -> None:
    value = node.outputs[0]
    if not value.uses() and not value.is_graph_output():
        graph.remove(node, safe=True)
