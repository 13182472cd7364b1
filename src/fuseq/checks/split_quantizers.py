"""FQ113: one tensor is quantized by several pairs with different scales."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.rule import Fixable, Rule
from fuseq.checks.scale_mends import share_one_pair
from fuseq.passes.matching import constant
from fuseq.passes.quantizers import Quantizer, is_quantize, read_quantizer


def _check(context: Context) -> Iterator[Finding]:
    """Two QuantizeLinear of one activation whose scale, zero point or type differ."""
    seen = set()
    for node in context.graph:
        value = node.inputs[0] if is_quantize(node) else None
        if value is None or value in seen or constant(value) is not None:
            continue
        seen.add(value)
        nodes = [use.node for use in value.uses() if is_quantize(use.node) and use.idx == 0]
        found = [(n, by) for n in nodes if isinstance(by := read_quantizer(n), Quantizer)]
        if len(found) < 2 or all(by.equals(found[0][1]) for _, by in found):
            continue
        names = ", ".join(n.name or "" for n, _ in found)
        alone = context.alone(*(n for n, _ in found))
        yield RULE.finding(
            context,
            node,
            f"{names} quantize one tensor with different scales, so it is written once for each and "
            "the layers that read it cannot merge",
            "quantize the tensor once, with the largest scale, and let all readers share the pair",
            tensor=value,
            cost=context.cost_of(alone) if alone else context.copy_cost(value),
            confirmed=len(alone) > 1 and not context.simulated,
        )


RULE = Rule(
    code="FQ113",
    name="split-quantizers",
    severity="warning",
    summary="Several pairs with different scales quantize one tensor.",
    fixable=Fixable("unsafe", "readers see the tensor with another scale than before"),
    check=_check,
    mend=share_one_pair,
)
