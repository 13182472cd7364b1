"""FQ204: operators on quantized tensors (QLinearConv ...), which GPU compilers do not have."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import qoperators
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.float_only import is_integer_operator


def _check(context: Context) -> Iterator[Finding]:
    """QLinearConv and its like."""
    if not context.is_gpu:
        return
    for node in context.graph:
        if is_integer_operator(node):
            yield RULE.finding(
                context,
                node,
                f"{node.op_type} computes on quantized tensors; TensorRT knows float operators "
                "between QuantizeLinear and DequantizeLinear alone",
                "write the file in QDQ format (QuantFormat.QDQ); `fuseq fix` rewrites it, scales kept",
                tensor=node.outputs[0],
            )


RULE = Rule(
    code="FQ204",
    name="integer-operator",
    severity="error",
    summary="An operator computes on quantized tensors (QOperator format).",
    fixable=Fixable("safe", "a float operator between pairs of the same scales computes the same"),
    check=_check,
    mend=qoperators,
)
