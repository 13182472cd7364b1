"""Refuse a graph that is none: a tensor that nobody makes, nodes that wait for each other."""

from __future__ import annotations

import functools

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.errors import ModelError

MAX_CHANGED_NODES = 30_000
"""CLIP ViT-L/14 has 2,000 nodes and an exported decoder of 32 layers under 10,000."""


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
        _check_arity(node, model.opset_imports.get("", 20), name)
    for value in graph.outputs:
        if value not in known:
            raise ModelError(f"{name}: no node makes output {value.name!r}; export it again.")
    if _is_in_order(graph):
        return
    try:
        common.TopologicalSortPass()(model)
    except (ValueError, RuntimeError) as error:
        raise ModelError(
            f"{name}: nodes wait for each other ({_waiting(graph)}): the graph has a cycle; "
            "export it again."
        ) from error


def _check_arity(node: ir.Node, opset: int, name: str) -> None:
    """Inputs and outputs that the operator cannot do without (ONNX operator schemas)."""
    if node.domain not in ("", "ai.onnx"):
        return
    needed = _arity(node.op_type, opset)
    what = f"{name}: node {node.name or node.op_type!r} ({node.op_type})"
    if needed is None:
        return
    is_short = len(node.inputs) < needed[0] or None in node.inputs[: needed[0]]
    if is_short or len(node.outputs) < needed[1]:
        raise ModelError(
            f"{what} has {len(node.inputs) - node.inputs.count(None)} inputs and "
            f"{len(node.outputs)} outputs; the operator "
            f"takes at least {needed[0]} and {needed[1]}. Export it again."
        )
    axes = _WEIGHT_AXES.get(node.op_type)
    weight = node.inputs[1] if axes is not None else None
    if axes is None or weight is None or weight.const_value is None:
        return
    found = len(weight.const_value.shape)
    if not axes[0] <= found <= axes[1]:
        raise ModelError(f"{what} has a weight of {found} axes; it takes {axes[0]} to {axes[1]}.")


_WEIGHT_AXES = {"Conv": (3, 5), "ConvTranspose": (3, 5), "Gemm": (2, 2), "MatMul": (1, 8)}


@functools.lru_cache(maxsize=1024)
def _arity(op_type: str, opset: int) -> tuple[int, int] | None:
    """Fewest inputs and outputs of an operator; None where there is no such operator."""
    from onnx import defs  # noqa: PLC0415 (loads every schema)

    if opset < 1 or not defs.has(op_type, opset, ""):
        return None
    schema = defs.get_schema(op_type, opset, "")
    return schema.min_input, schema.min_output


def _is_in_order(graph: ir.Graph) -> bool:
    """Every node of the main graph reads what stands before it; bodies of If and Loop are not asked."""
    done: set[ir.Value] = set()
    for node in graph:
        if any(v is not None and v.producer() is not None and v not in done for v in node.inputs):
            return False
        done.update(node.outputs)
    return True


def _waiting(graph: ir.Graph) -> str:
    """Names of some nodes that can never run (Kahn's algorithm, one visit an edge)."""
    waits = {
        node: sum(v is not None and v.producer() is not None for v in node.inputs) for node in graph
    }
    ready = [node for node, count in waits.items() if count == 0]
    while ready:
        node = ready.pop()
        for value in node.outputs:
            for use in value.uses():
                if use.node in waits:
                    waits[use.node] -= 1
                    if waits[use.node] == 0:
                        ready.append(use.node)
    left = [node for node, count in waits.items() if count > 0]
    return ", ".join(repr(node.name or node.op_type) for node in left[:3])


def check_size(model: ir.Model, name: str) -> None:
    """Refuse what passes and compilers would take hours for.

    Raises:
        ModelError: The main graph has more than :data:`MAX_CHANGED_NODES` nodes.
    """
    count = len(model.graph)
    if count > MAX_CHANGED_NODES:
        raise ModelError(
            f"{name}: {count} nodes; {MAX_CHANGED_NODES} are the most that are mended. `fuseq check` "
            "reads it; split the model to mend it."
        )
