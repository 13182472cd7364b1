"""FQ305: quantized weights that the file still stores in float."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import store_all_weights
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.matching import constant


def _check(context: Context) -> Iterator[Finding]:
    """A QuantizeLinear stands on a float initializer; one finding a file, with the bytes of all."""
    found = [layer for layer in context.layers if layer.weight_quantize is not None]
    if not found:
        return
    wasted = 0
    for layer in found:
        tensor = constant(layer.stored)
        wasted += tensor.nbytes - tensor.size if tensor is not None else 0
    first = found[0]
    yield RULE.finding(
        context,
        first.weight_quantize or "",
        f"{len(found)} weights are stored in float behind a QuantizeLinear; in 8 bits the file is "
        f"{wasted / 1e6:.1f} MB smaller, and nobody has to fold them",
        "store the weights in 8 bits behind a DequantizeLinear alone; the values are the same",
        tensor=first.stored,
    )


RULE = Rule(
    code="FQ305",
    name="float-stored-weight",
    severity="warning",
    summary="Quantized weights are still stored in float.",
    fixable=Fixable("safe", "the same integers are computed once and stored"),
    check=_check,
    mend=store_all_weights,
)
