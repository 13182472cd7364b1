"""Relu and Clip before MaxPool instead of behind it, where a convolution's kernel absorbs them."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.matching import constant, is_op, made_by, only_reader


def activations_before_pools(model: ir.Model) -> list[str]:
    """Swap ``MaxPool -> Relu`` into ``Relu -> MaxPool``, in place, where one reads only the other.

    Both orders give the same numbers: Relu and Clip never decrease, so the largest value stays the
    largest, and padding is never chosen. Integer kernels need it, because a pool copies values and
    so shares its scale with the tensor before it, which would then have to be cut at 0.
    """
    for node in list(model.graph):
        if not is_op(node, "Relu", "Clip") or not _bounds_are_constant(node):
            continue
        pool = made_by(node.inputs[0], "MaxPool")
        source = pool.inputs[0] if pool is not None else None
        if pool is None or source is None or only_reader(pool.outputs[0]) is not node:
            continue
        if source.producer() is None or only_reader(source) is not pool or len(pool.outputs) > 1:
            continue
        _swap(model.graph, pool, node, source)
    return []


def _bounds_are_constant(node: ir.Node) -> bool:
    return all(value is None or constant(value) is not None for value in node.inputs[1:])


def _swap(graph: ir.Graph, pool: ir.Node, activation: ir.Node, source: ir.Value) -> None:
    """The pooled output keeps the name that its readers know."""
    inner, outer = pool.outputs[0], activation.outputs[0]
    name, was_output = outer.name, outer.is_graph_output()
    outer.replace_all_uses_with(inner, replace_graph_outputs=was_output)
    graph.remove(activation)
    activation.replace_input_with(0, source)
    graph.insert_before(pool, activation)
    pool.replace_input_with(0, outer)
    outer.name, inner.name = inner.name, name
    outer.shape, outer.type = source.shape, source.type
