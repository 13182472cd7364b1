"""FQ105: a pair in front of an operator that no kernel of the target runs quantized."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import drop_the_pair
from fuseq.checks.reading import activation_pairs, readers
from fuseq.checks.rule import Fixable, Rule
from fuseq.placement.patterns import NORMALIZATIONS, copies_values

_NEVER = NORMALIZATIONS | {"Softmax", "LogSoftmax", "Erf", "Exp", "Sqrt", "TopK", "ArgMax"}


def _check(context: Context) -> Iterator[Finding]:
    """Every reader of the pair, also behind moves, is one of:

    1. a normalization, Softmax or function, which no kernel of any GPU target reads quantized;
    2. an operator that the target's rules refuse (``refused``).
    """
    rules = context.rules
    if rules is None or rules.pairs_on_outputs:
        return
    for quantize, dequantize in activation_pairs(context.graph):
        users = [node for node, _ in readers(dequantize.outputs[0]) if not copies_values(node)]
        if not users or dequantize.outputs[0].is_graph_output():
            continue
        reasons = [_reason(user, context) for user in users]
        if not all(reasons):
            continue
        source = quantize.inputs[0]
        alone = context.alone(quantize, dequantize)
        yield RULE.finding(
            context,
            dequantize,
            f"{_names(users)}: {reasons[0]}; the pair only costs accuracy"
            + (" and runs as a kernel of its own" if alone else ""),
            "remove the pair; quantize what the operator writes, where the next layer reads it",
            tensor=source,
            cost=context.cost_of(alone) if alone else context.copy_cost(source),
            confirmed=bool(alone) and not context.simulated,
        )


def _reason(node: ir.Node, context: Context) -> str:
    rules = context.rules
    if node.op_type in _NEVER:
        return f"no kernel reads a quantized {node.op_type} input"
    if rules is not None and node.op_type in rules.refused:
        return rules.refused[node.op_type]
    return ""


def _names(nodes: list[ir.Node]) -> str:
    shown = ", ".join(f"{node.op_type} {node.name}" for node in nodes[:3])
    return f"{shown} and {len(nodes) - 3} more" if len(nodes) > 3 else shown


RULE = Rule(
    code="FQ105",
    name="unusable-pair",
    severity="warning",
    summary="A pair stands in front of an operator that no kernel runs quantized.",
    fixable=Fixable("safe", "without the pair the operator reads the values that it had in float"),
    check=_check,
    mend=drop_the_pair,
)
