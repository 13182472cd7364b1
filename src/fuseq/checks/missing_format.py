"""FQ206: a format that the target's device has no kernels for."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.reading import quantized_formats
from fuseq.checks.rule import Fixable, Rule
from fuseq.errors import TargetError
from fuseq.formats import USER_FORMATS
from fuseq.passes.quantizers import is_dequantize, is_quantize


def _check(context: Context) -> Iterator[Finding]:
    """The target's own rules refuse the format; one finding a format, at its first node."""
    if context.target is None:
        return
    for fmt in sorted(quantized_formats(context.graph) & set(USER_FORMATS)):
        try:
            context.target.rules(fmt)
        except TargetError as error:
            first = next(n for n in context.graph if is_quantize(n) or is_dequantize(n))
            yield RULE.finding(
                context,
                first,
                f"the file is quantized to {fmt}: {error}",
                "quantize to a format that every GPU of the fleet has, or make one file a GPU",
                tensor=first.inputs[0],
                confirmed=bool(context.refusal) and not context.simulated,
            )


RULE = Rule(
    code="FQ206",
    name="missing-format",
    severity="error",
    summary="The target's device has no kernels for the file's format.",
    fixable=Fixable("unsafe", "the model is quantized anew to a format that the device has"),
    check=_check,
)
