"""Refuse a graph that is none: a tensor that nobody makes, nodes that wait for each other."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.errors import ModelError


def check_well_formed(model: ir.Model, name: str) -> None:
    """Check the main graph, and bring its nodes into an order in which they can run.

    Raises:
        ModelError: A node or output reads what no node, input or initializer makes, or the graph has
            a cycle; the sentence names the node.
    """
    graph = model.graph
    known = {*graph.inputs, *graph.initializers.values()}
    known.update(value for node in graph for value in node.outputs)
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                raise ModelError(
                    f"{name}: node {node.name or node.op_type!r} ({node.op_type}) reads "
                    f"{value.name!r}, which no node, input or initializer makes; export it again."
                )
    for value in graph.outputs:
        if value not in known:
            raise ModelError(f"{name}: no node makes output {value.name!r}; export it again.")
    try:
        common.TopologicalSortPass()(model)
    except (ValueError, RuntimeError) as error:
        raise ModelError(
            f"{name}: nodes wait for each other ({_waiting(graph)}): the graph has a cycle; "
            "export it again."
        ) from error


def _waiting(graph: ir.Graph) -> str:
    """Names of some nodes that can never run."""
    done = {*graph.inputs, *graph.initializers.values()}
    left = list(graph)
    while True:
        ready = [n for n in left if all(v is None or v in done for v in n.inputs)]
        if not ready:
            break
        done.update(value for node in ready for value in node.outputs)
        left = [node for node in left if node not in set(ready)]
    return ", ".join(repr(node.name or node.op_type) for node in left[:3])
