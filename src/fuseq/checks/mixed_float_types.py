"""FQ201: two float types meet at one operator, which strong typing refuses."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import one_float_type
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.two_types import nodes_of_two_types


def _check(context: Context) -> Iterator[Finding]:
    """Operators whose float inputs and outputs differ in type; of QuantizeLinear tensor and scale, of
    DequantizeLinear scale and output. Only files with Q/DQ: a float file is the exporter's matter."""
    if not context.is_gpu or not context.format or context.model is None:
        return
    for node, listed in nodes_of_two_types(context.model):
        yield RULE.finding(
            context,
            node,
            f"{node.op_type} sees two float types ({listed}); a strongly typed compiler refuses that "
            "or computes the operator in the wider type",
            "give the file one float type, scales included; `fuseq fix` does",
            tensor=node.inputs[0] if node.inputs else None,
        )


RULE = Rule(
    code="FQ201",
    name="mixed-float-types",
    severity="error",
    summary="Two float types meet at one operator.",
    fixable=Fixable("safe", "the whole file gets one float type; FP32 islands stay behind Casts"),
    check=_check,
    mend=one_float_type,
)
