"""Tables of embeddings: rows that a Gather reads by index, where a target widens only those rows."""

from __future__ import annotations

import math

import onnx_ir as ir

from fuseq.placement.patterns import constant_of
from fuseq.placement.plan import QuantizedTensor, Region, Use
from fuseq.targets.fusion import FusionRules

MIN_ELEMENTS = 1 << 16
"""Below this a table is not worth its scales."""

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def tables(graph: ir.Graph, rules: FusionRules) -> list[tuple[Region, QuantizedTensor]]:
    """Tables to be stored in the weight format with one scale a row; none unless the rules say so."""
    if not rules.tables:
        return []
    found = []
    for node in graph:
        table = node.inputs[0] if node.op_type == "Gather" else None
        if table is None or not _is_table(node, table):
            continue
        name = node.name or ""
        why = "only the rows that are read are widened; the table takes half the memory"
        entry = QuantizedTensor(
            table.name or "", "weight", rules.weight.name, 0, table.name or "", (Use(name, 0),),
            name, f"table of {name}: {why}; one scale a row",
        )  # fmt: skip
        found.append((Region(name, "embedding table", (name,), True, f"quantized: {why}"), entry))
    return found


def _is_table(node: ir.Node, table: ir.Value) -> bool:
    tensor = constant_of(table)
    if tensor is None or tensor.dtype not in _FLOATS or len(tensor.shape) != 2:
        return False
    if len(table.uses()) != 1 or constant_of(node.inputs[1]) is not None:
        return False
    elements = math.prod(int(size) for size in tensor.shape.numpy())
    return node.attributes.get_int("axis", 0) == 0 and elements >= MIN_ELEMENTS
