"""Identity nodes removed, in subgraphs too, where every graph keeps outputs of its own.

onnx_ir's IdentityEliminationPass (1.1) makes of ``y = Identity(x)`` with ``x`` of an outer graph and ``y``
an output of a branch an output that another graph computes: it stops at the second such branch, and
after the first the file is not valid. That is how If branches hand on what they do not change (LSTM
and the squeezes around it, as PyTorch's older exporter writes them).
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.matching import is_op


def drop_identities(model: ir.Model) -> None:
    """Give users of ``Identity(x)`` ``x`` itself, in place.

    1. ``y`` is no output of a graph: its users read ``x``.
    2. ``y`` is an output and ``x`` is computed in the same graph: ``x`` takes the name of ``y``.
    3. ``y`` is an output and ``x`` an input, an initializer, an output already, or of an outer graph:
       the node stays, for an output must be computed where it is declared, under its own name.
    """
    for graph in (*model.graphs(), *model.functions.values()):
        for node in list(graph):
            if is_op(node, "Identity") and len(node.inputs) == 1:
                _drop(node)


def _drop(node: ir.Node) -> None:
    source, output = node.inputs[0], node.outputs[0]
    if source is None or node.graph is None:
        return
    is_output = output.is_graph_output()
    if is_output and not _can_be_output(source, node):
        return
    source.shape = _merged(source.shape, output.shape)
    source.type = source.type or output.type
    name = output.name
    ir.convenience.replace_all_uses_with(output, source, replace_graph_outputs=True)
    if is_output:
        source.name = name
    node.graph.remove(node, safe=True)


def _can_be_output(source: ir.Value, node: ir.Node) -> bool:
    producer = source.producer()
    return producer is not None and producer.graph is node.graph and not source.is_graph_output()


def _merged(one: ir.Shape | None, other: ir.Shape | None) -> ir.Shape | None:
    """What both shapes know: a number before a symbol, a named symbol before an open one."""
    if one is None or other is None or len(one) != len(other):
        return one if one is not None else other
    return ir.Shape([_known(a, b) for a, b in zip(one, other, strict=True)])


def _known(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    if isinstance(one, int):
        return one
    return other if isinstance(other, int) or one.value is None else one
