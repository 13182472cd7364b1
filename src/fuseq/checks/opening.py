"""Open a model for checking: refuse what is no graph, name what has no name, know the types."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from fuseq.model import load
from fuseq.passes.clean import lift_constants
from fuseq.passes.names import fix_names
from fuseq.passes.quantizer_constants import fold_quantizer_constants
from fuseq.passes.shapes import infer_shapes
from fuseq.passes.well_formed import check_well_formed

MAX_INFERRED_NODES = 20_000
"""ONNX shape inference takes 0.3 ms a node; beyond this only what the file says is known."""

_INVENTED = "unk__"
"""Prefix of the symbols that ONNX shape inference makes up for sizes that it cannot derive."""


def open_model(path: str | os.PathLike[str]) -> ir.Model:
    """Load, check that the graph is one, and prepare it for reading; names stay where they can.

    1. Every input of a node is made by a node, an initializer, or a graph input.
    2. Nodes stand in an order in which they can run, or can be brought into one.
    3. Constants become initializers, computed scales and zero points too; names are unique and
       printable, types and shapes known.

    Raises:
        ModelError: The file cannot be read, a tensor is made by nobody, or nodes form a cycle.
    """
    model = load(path)
    check_well_formed(model, Path(path).name)
    lift_constants(model)
    fix_names(model)
    fold_quantizer_constants(model)
    if len(model.graph) <= MAX_INFERRED_NODES and not _is_typed(model.graph):
        infer_shapes(model)
    return model


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
