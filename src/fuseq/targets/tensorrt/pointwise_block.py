"""Finds the pointwise subgraph behind a value that has this value as its only computed input.

"Any single-input, single-output pointwise layer", as the generic activation that fuses into a
convolution (TensorRT documentation, "Layer Fusion Catalog"); ``x * Sigmoid(x)`` and the spelling of
GELU with Erf are such subgraphs of two to five nodes.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from fuseq.targets.tensorrt.operators import POINTWISE

_LONGEST = 12
"""GELU by Tanh has nine nodes; a longer chain is found as several blocks."""


def pointwise_block(value: ir.Value, constants: Collection[ir.Value]) -> list[ir.Node]:
    """The smallest such subgraph, in order of computation; empty when there is none."""
    if value.is_graph_output():
        return []
    block: list[ir.Node] = []
    made = [value]
    while len(block) < _LONGEST:
        node = _next(made, block, constants)
        if node is None:
            return []
        block.append(node)
        made.extend(node.outputs)
        if _is_closed(made, block):
            return block
    return []


def _next(
    made: list[ir.Value], block: list[ir.Node], constants: Collection[ir.Value]
) -> ir.Node | None:
    """A pointwise node that reads only what the block has made, and constants."""
    for source in made:
        for use in source.uses():
            node = use.node
            if node in block or node.op_type not in POINTWISE:
                continue
            reads = [read for read in node.inputs if read is not None]
            if all(read in made or read in constants for read in reads):
                return node
    return None


def _is_closed(made: list[ir.Value], block: list[ir.Node]) -> bool:
    """Only the last value is read outside, or is the model's output."""
    return not any(
        value.is_graph_output() or any(use.node not in block for use in value.uses())
        for value in made[:-1]
    )
