"""FQ104: a pool, Concat or Add reads float between quantized neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.float_residual import conv_ends, joined
from fuseq.checks.reading import is_dequantized, is_float_tensor
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.add_pair import add_pair
from fuseq.passes.quantizers import Quantizer, read_quantizer
from fuseq.placement.patterns import copies_values

_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})


def _check(context: Context) -> Iterator[Finding]:
    """1. Concat: some inputs come out of pairs, others are float, and its readers quantize it.

    2. A pool that the target runs in the format (``unweighted``) reads float, and its readers
       quantize it.
    3. The same for an Add that no convolution takes.
    """
    rules = context.rules
    if rules is None or rules.pairs_on_outputs:
        return
    ends = conv_ends(context)
    for node in context.graph:
        floats = [v for v in node.inputs if is_float_tensor(v) and not is_dequantized(v)]
        if not floats:
            continue
        if node.op_type == "Concat":  # case 1
            wanted = len(floats) < len(node.inputs) and _is_read_quantized(node)
        elif node.op_type in _POOLS:  # case 2
            wanted = node.op_type in rules.unweighted and _is_wanted(node, floats)
        else:  # case 3
            wanted = (
                "Add" in rules.unweighted
                and joined(node) is not None
                and not any(value in ends for value in node.inputs)
                and _is_wanted(node, floats)
            )
        if wanted:
            yield _finding(context, node, floats)


def _finding(context: Context, node: ir.Node, floats: list[ir.Value | None]) -> Finding:
    names = ", ".join(value.name or "" for value in floats if value is not None)
    behind = [use.node for use in node.outputs[0].uses()]
    return RULE.finding(
        context,
        node,
        f"{node.op_type} reads {names} in float although what reads it is quantized, so it runs in "
        "float and the Q behind it runs alone",
        "put a pair on each of its inputs, with the scale of the pair behind it",
        tensor=floats[0],
        cost=context.cost_of(context.alone(*behind)),
        confirmed=not context.simulated and bool(context.alone(*behind)),
    )


def _pairs_from_behind(model: ir.Model, finding: Finding) -> str:
    """Each float input gets a pair with the scale of the first Q behind the operator."""
    node = next((each for each in model.graph if each.name == finding.node), None)
    quantize = _quantizer_behind(node) if node is not None else None
    by = read_quantizer(quantize) if quantize is not None else None
    if node is None or not isinstance(by, Quantizer) or by.problem:
        return ""
    names = [
        value.name or ""
        for index, value in enumerate(list(node.inputs))
        if value is not None
        and is_float_tensor(value)
        and not is_dequantized(value)
        and add_pair(model, node, index, by)
    ]
    return (
        f"{', '.join(names)} got a pair with the scale {float(by.scale):.6g} of what reads it"
        if (names)
        else ""
    )


def _quantizer_behind(node: ir.Node) -> ir.Node | None:
    stack = [node.outputs[0]]
    while stack:
        for use in stack.pop().uses():
            if use.node.op_type == "QuantizeLinear" and use.idx == 0:
                return use.node
            if copies_values(use.node) and use.idx == 0:
                stack.append(use.node.outputs[0])
    return None


def _is_wanted(node: ir.Node, floats: list[ir.Value | None]) -> bool:
    """All readers quantize it, and each float input is read by it alone (else its Q runs alone)."""
    alone = all(v is not None and {use.node for use in v.uses()} == {node} for v in floats)
    made = all(v is not None and v.producer() is not None for v in floats)
    return alone and made and _is_read_quantized(node)


def _is_read_quantized(node: ir.Node) -> bool:
    """Every reader is a QuantizeLinear, also behind operators that only move values."""
    stack, seen = [node.outputs[0]], 0
    while stack:
        value = stack.pop()
        if value.is_graph_output() or not value.uses():
            return False
        for use in value.uses():
            if use.node.op_type == "QuantizeLinear" and use.idx == 0:
                seen += 1
            elif copies_values(use.node) and use.idx == 0:
                stack.append(use.node.outputs[0])
            else:
                return False
    return seen > 0


RULE = Rule(
    code="FQ104",
    name="float-neighbour",
    severity="warning",
    summary="A pool, Concat or Add between quantized neighbours reads float.",
    fixable=Fixable("unsafe", "the inputs' scales have to be calibrated or taken from behind"),
    check=_check,
    mend=_pairs_from_behind,
)
