"""Remove operators that give their input back."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from fuseq.passes.matching import array, integers, is_op, scalar
from fuseq.passes.splice import bypass
from fuseq.passes.symbolic_dims import same_shape, shape_elements, value_dims


def remove_no_ops(model: ir.Model) -> list[str]:
    """Remove, where shapes and constants prove that nothing changes:

    1. Pad with zeros only as pads; Concat, Sum, Min, Max of one input.
    2. Transpose in the old order; Cast to the type that is there.
    3. Reshape and Expand to the shape that is there.
    4. Slice of the whole; Resize and Upsample by 1 to the same shape.
    5. Mul and Div by 1, Add and Sub of 0 that do not broadcast; Pow of 1.

    A node whose output is a graph output stays, because the output must keep its name.
    """
    for node in list(model.graph):
        source = node.inputs[0] if node.inputs else None
        if source is None or node.domain != "" or len(node.outputs) != 1:
            continue
        proof = _PROOFS.get(node.op_type)
        if proof is not None and proof(node):
            kept = _computed(node)
            _bypass_as(model.graph, node, kept)
    return []


def _bypass_as(graph: ir.Graph, node: ir.Node, source: ir.Value | None) -> None:
    if source is not None and (
        not source.is_initializer() or not node.outputs[0].is_graph_output()
    ):
        bypass(graph, node, source)


def _computed(node: ir.Node) -> ir.Value | None:
    """The operand that passes through: the other one of ``1 * x`` and ``0 + x``."""
    if is_op(node, "Mul", "Add") and array(node.inputs[0], 1) is not None:
        return node.inputs[1]
    return node.inputs[0]


def _same_shape(node: ir.Node) -> bool:
    source = _computed(node)
    return source is not None and same_shape(source, node.outputs[0])


def _no_pads(node: ir.Node) -> bool:
    pads = integers(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is not None and not any(pads)


def _one_input(node: ir.Node) -> bool:
    return len(node.inputs) == 1


def _same_order(node: ir.Node) -> bool:
    perm = node.attributes.get("perm")
    return perm is not None and list(perm.as_ints()) == list(range(len(perm.as_ints())))


def _same_type(node: ir.Node) -> bool:
    source = node.inputs[0]
    return source is not None and source.dtype == node.attributes["to"].as_int()


def _same_target(node: ir.Node) -> bool:
    """The shape is spelled out as the input's own, or inferred to be it."""
    source = node.inputs[0]
    wanted = shape_elements(node.inputs[1]) if len(node.inputs) > 1 else None
    if source is not None and wanted is not None and wanted == value_dims(source):
        return True
    return _same_shape(node)


def _whole(node: ir.Node) -> bool:
    steps = integers(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else [1]
    if steps is None or any(step != 1 for step in steps):
        return False
    return _same_shape(node)


def _neutral(number: float) -> Callable[[ir.Node], bool]:
    def proof(node: ir.Node) -> bool:
        sides = (1,) if node.op_type in ("Div", "Sub", "Pow") else (0, 1)
        return any(scalar(node.inputs[side]) == number for side in sides) and _same_shape(node)

    return proof


_PROOFS: dict[str, Callable[[ir.Node], bool]] = {
    "Pad": _no_pads,
    "Concat": _one_input,
    "Sum": _one_input,
    "Min": _one_input,
    "Max": _one_input,
    "Transpose": _same_order,
    "Cast": _same_type,
    "Reshape": _same_target,
    "Expand": _same_target,
    "Slice": _whole,
    "Mul": _neutral(1.0),
    "Div": _neutral(1.0),
    "Pow": _neutral(1.0),
    "Add": _neutral(0.0),
    "Sub": _neutral(0.0),
}
