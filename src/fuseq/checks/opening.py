"""Open a model for checking: refuse what is no graph, name what has no name, know the types."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.errors import ModelError
from fuseq.model import load
from fuseq.passes.clean import lift_constants
from fuseq.passes.names import fix_names
from fuseq.passes.shapes import infer_shapes

MAX_INFERRED_NODES = 20_000
"""ONNX shape inference takes 0.3 ms a node; beyond this only what the file says is known."""

_INVENTED = "unk__"
"""Prefix of the symbols that ONNX shape inference makes up for sizes that it cannot derive."""


def open_model(path: str | os.PathLike[str]) -> ir.Model:
    """Load, check that the graph is one, and prepare it for reading; names stay where they can.

    1. Every input of a node is made by a node, an initializer, or a graph input.
    2. Nodes stand in an order in which they can run, or can be brought into one.
    3. Constants become initializers, names unique and printable, types and shapes known.

    Raises:
        ModelError: The file cannot be read, a tensor is made by nobody, or nodes form a cycle.
    """
    model = load(path)
    _check_sources(model.graph, Path(path).name)
    _sort(model, Path(path).name)
    lift_constants(model)
    fix_names(model)
    if len(model.graph) <= MAX_INFERRED_NODES and not _is_typed(model.graph):
        infer_shapes(model)
    return model


def _check_sources(graph: ir.Graph, file: str) -> None:
    known = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        for value in node.inputs:
            if value is None or value in known or value.producer() is not None:
                continue
            if value.const_value is None and not value.is_graph_input():
                raise ModelError(
                    f"{file}: node {node.name or node.op_type!r} ({node.op_type}) reads "
                    f"{value.name!r}, which no node, input or initializer makes; export it again."
                )
    for value in graph.outputs:
        if value.producer() is None and value not in known:
            raise ModelError(
                f"{file}: output {value.name!r} is made by no node; export the model again."
            )


def _sort(model: ir.Model, file: str) -> None:
    done: set[ir.Value] = set()
    for node in model.graph:
        if any(v is not None and v.producer() is not None and v not in done for v in node.inputs):
            break
        done.update(node.outputs)
    else:
        return
    try:
        common.TopologicalSortPass()(model)
    except (ValueError, RuntimeError) as error:
        raise ModelError(
            f"{file}: node {node.name or node.op_type!r} ({node.op_type}) depends on its own "
            "output: the graph has a cycle; export it again."
        ) from error


def _is_typed(graph: ir.Graph) -> bool:
    """Every type is known, and no size bears a symbol that an earlier inference made up."""
    return all(
        value.dtype is not None and value.shape is not None and not _is_invented(value.shape)
        for node in graph
        for value in node.outputs
    )


def _is_invented(shape: ir.Shape) -> bool:
    return any(
        not isinstance(dim, int) and (dim.value is None or dim.value.startswith(_INVENTED))
        for dim in shape
    )
