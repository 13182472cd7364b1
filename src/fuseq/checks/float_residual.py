"""FQ103: a residual Add that fuses into a quantized convolution reads its other branch in float."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import pair_of_another_reader
from fuseq.checks.reading import Layer, is_dequantized, is_float_tensor
from fuseq.checks.rule import Fixable, Rule
from fuseq.placement.patterns import ACTIVATIONS, constant_of, epilogue


def _check(context: Context) -> Iterator[Finding]:
    """1. The target fuses the Add and wants the other branch quantized (``residual``: identity).

    2. One branch ends in a quantized convolution that nobody else reads, the other has no pair, and
       what reads the sum reads it quantized: with a float reader the sum is float anyway.
    3. The pair costs no kernel: the branch is quantized for another reader already, or ends in a
       quantized convolution itself, which writes 8 bits.
    """
    if context.rules is None or context.rules.residual != "identity":
        return
    ends = conv_ends(context)
    for node in context.graph:
        branches = joined(node)
        if branches is None or not _is_read_quantized(node):
            continue
        found = _fused_and_other(branches, ends)
        if found is None:
            continue
        conv, other = found
        yield RULE.finding(
            context,
            node,
            f"the Add fuses into the convolution {ends[conv].node.name}, but its other branch is "
            "float, so the kernel writes float and the next Q runs alone",
            "put a pair on this branch of the Add, and none on the convolution's",
            tensor=other,
            cost=context.cost_of(context.alone(*_quantizers_behind(node))),
        )


def _fused_and_other(
    branches: tuple[ir.Value, ir.Value], ends: dict[ir.Value, Layer]
) -> tuple[ir.Value, ir.Value] | None:
    """The branch that fuses, and the one that lacks a pair which costs no kernel (case 3)."""
    if any(is_dequantized(value) for value in branches):
        return None
    for conv, other in (branches, branches[::-1]):
        if conv in ends and (other in ends or _is_quantized_elsewhere(other)):
            return conv, other
    return None


def _is_quantized_elsewhere(value: ir.Value) -> bool:
    return any(use.node.op_type == "QuantizeLinear" for use in value.uses())


def conv_ends(context: Context) -> dict[ir.Value, Layer]:
    """Last tensor of each quantized convolution with what fuses behind it, read by one node."""
    rules = context.rules
    found = {}
    for layer in context.layers:
        if not (layer.node.op_type == "Conv" and layer.is_quantized) or layer.is_depthwise:
            continue
        tail = epilogue(layer.node)
        fuses = rules is not None and rules.adds_behind_activation
        if tail and not fuses and any(step.op_type in ACTIVATIONS for step in tail):
            continue
        value = ([layer.node, *tail])[-1].outputs[0]
        if len(value.uses()) == 1 and not value.is_graph_output():
            found[value] = layer
    return found


def joined(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The two different activations of an Add without broadcast; None for any other node."""
    if node.op_type != "Add" or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None or left is right:
        return None
    if constant_of(left) is not None or constant_of(right) is not None:
        return None
    if not (is_float_tensor(left) and is_float_tensor(right)) or left.shape != right.shape:
        return None
    return left, right


def _quantizers_behind(node: ir.Node) -> list[ir.Node]:
    tail = ([node, *epilogue(node)])[-1]
    users = [use.node for use in tail.outputs[0].uses()]
    return [user for user in users if user.op_type == "QuantizeLinear"]


def _is_read_quantized(node: ir.Node) -> bool:
    """Somebody quantizes the sum, behind its activation."""
    return bool(_quantizers_behind(node))


RULE = Rule(
    code="FQ103",
    name="float-residual",
    severity="warning",
    summary="A residual Add fused into a quantized convolution reads its other branch in float.",
    fixable=Fixable(
        "unsafe", "the branch's scale has to be calibrated, unless its Q stands elsewhere"
    ),
    check=_check,
    mend=pair_of_another_reader,
)
