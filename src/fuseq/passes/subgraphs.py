"""If, Loop and Scan hold graphs of their own; these stay float."""

from __future__ import annotations

import onnx_ir as ir


def holds_graphs(node: ir.Node) -> bool:
    """Tell whether ``node`` carries a subgraph (If, Loop, Scan, SequenceMap)."""
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(attribute.type in kinds for attribute in node.attributes.values())


def note_subgraphs(model: ir.Model) -> list[str]:
    """Say which nodes hold subgraphs; nothing is changed."""
    held = [node for node in model.graph if holds_graphs(node)]
    if not held:
        return []
    names = ", ".join(f"{node.op_type} {node.name!r}" for node in held[:5])
    more = f" and {len(held) - 5} more" if len(held) > 5 else ""
    return [f"the subgraphs of {names}{more} stay as they are, in float."]
