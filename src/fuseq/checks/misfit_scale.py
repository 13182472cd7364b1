"""FQ304: a scale whose shape does not fit its tensor."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.quantizers import is_dequantize, is_quantize, read_quantizer

_SHAPE_FAULTS = ("its scale has shape", "its axis", "its zero point has")


def _check(context: Context) -> Iterator[Finding]:
    """1. The number of scales is not the size of the axis. 2. The axis is outside the tensor. 3. The zero
    point has another size than the scale. 4. The node lacks its scale."""
    for node in context.graph:
        if not (is_quantize(node) or is_dequantize(node)):
            continue
        if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
            what = "it has no scale"
        else:
            by = read_quantizer(node)
            what = by if isinstance(by, str) else ""
        if what.startswith(_SHAPE_FAULTS) or " scales, and axis " in what or "no scale" in what:
            yield RULE.finding(
                context,
                node,
                f"{node.op_type}: {what}",
                "write one scale, or one for each channel of the named axis",
                tensor=node.inputs[0] if node.inputs else None,
            )


RULE = Rule(
    code="FQ304",
    name="misfit-scale",
    severity="error",
    summary="A scale's shape does not fit its tensor.",
    fixable=Fixable("none", "which channels the scales belong to is not in the file"),
    check=_check,
)
