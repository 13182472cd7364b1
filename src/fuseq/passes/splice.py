"""Put new nodes in the place of old ones; names of values and the user's source lines survive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fuseq.passes.names import fresh


def replace(
    graph: ir.Graph,
    old: Sequence[ir.Node],
    new: Sequence[ir.Node],
    old_values: Sequence[ir.Value],
    new_values: Sequence[ir.Value],
) -> None:
    """Replace ``old`` by ``new`` at the place of the last old node.

    New values take name, type and shape of the values that they replace, and new nodes the
    metadata (module path, stack trace) of the last old node. Old nodes must have no other readers.
    """
    last = old[-1]
    for node in new:
        for key, text in last.metadata_props.items():
            node.metadata_props.setdefault(key, text)
        node.name = node.name or last.name
    for before, after in zip(old_values, new_values, strict=True):
        after.type, after.shape = before.type, before.shape
    ir.convenience.replace_nodes_and_values(graph, last, old, new, old_values, new_values)


def bypass(graph: ir.Graph, node: ir.Node, source: ir.Value) -> bool:
    """Let readers of ``node``'s first output read ``source``, and remove the node.

    Where that output is a graph output, ``source`` takes its name and its place.

    Returns:
        False where ``source`` cannot take it, because it is an input, a constant or an output of
        the graph itself: then nothing is changed.
    """
    output = node.outputs[0]
    if output.is_graph_output():
        maker = source.producer()
        if maker is None or maker.graph is not graph or source.is_graph_output():
            return False
        source.type, source.shape = output.type or source.type, output.shape or source.shape
    output.replace_all_uses_with(source, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if source.is_graph_output():
        source.name, output.name = output.name, None
    return True


def new_constant(
    graph: ir.Graph, name: str, value: np.ndarray | ir.TensorProtocol, taken: set[str]
) -> ir.Value:
    """Register an initializer under the first free name like ``name``."""
    tensor = ir.tensor(value) if isinstance(value, np.ndarray) else value
    made = ir.Value(
        name=fresh(name, taken),
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )
    graph.register_initializer(made)
    return made


def typed(node: ir.Node, dtype: ir.DataType | None, shape: ir.Shape | None = None) -> ir.Node:
    """Write ``dtype`` and ``shape`` on the node's first output; returns the node."""
    node.outputs[0].type = ir.TensorType(dtype) if dtype is not None else None
    node.outputs[0].shape = shape
    return node
