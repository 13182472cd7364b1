"""FQ107: two scales around an operator that only moves values."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.reading import dequantizer
from fuseq.checks.rule import Fixable, Rule
from fuseq.checks.scale_mends import one_scale_around
from fuseq.passes.quantizers import Quantizer, is_quantize, read_quantizer
from fuseq.placement.patterns import copies_values


def _check(context: Context) -> Iterator[Finding]:
    """A DequantizeLinear, an operator that copies values, a QuantizeLinear with another scale.

    All inputs of a Concat count. Operators that the target runs between two scales of their own
    (``data_ops``: own) are fine.
    """
    rules = context.rules
    own = {op for op, kind in rules.data_ops.items() if kind == "own"} if rules else set()
    for node in context.graph:
        if not copies_values(node) or node.op_type in own:
            continue
        behind = [use.node for out in node.outputs for use in out.uses() if is_quantize(use.node)]
        inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        for value in inputs:
            before = dequantizer(value)
            other = next((q for q in behind if before is not None and _differ(before, q)), None)
            if before is not None and other is not None:
                alone = context.alone(before, other)
                yield RULE.finding(
                    context,
                    node,
                    f"{node.op_type} only moves values, yet {before.name} before it and {other.name} "
                    "behind it have two scales, so every value is rounded twice and requantized",
                    "give both sides one scale, the larger; then the operator moves 8-bit data",
                    tensor=value,
                    cost=context.cost_of(alone) if alone else context.copy_cost(value),
                    confirmed=bool(alone) and not context.simulated,
                )
                break


def _differ(left: ir.Node, right: ir.Node) -> bool:
    one, two = read_quantizer(left), read_quantizer(right)
    if not (isinstance(one, Quantizer) and isinstance(two, Quantizer)):
        return False
    return one.axis is None and two.axis is None and not one.equals(two)


RULE = Rule(
    code="FQ107",
    name="two-scales",
    severity="warning",
    summary="Two scales stand around an operator that only moves values.",
    fixable=Fixable("unsafe", "one of the two scales changes"),
    check=_check,
    mend=one_scale_around,
)
