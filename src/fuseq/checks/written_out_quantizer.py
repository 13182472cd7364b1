"""FQ208: quantization written out as Div, Round, Clip, Mul, which runs in float."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import written_out
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.matching import constant, split_constant

_BOUNDS = ("Clip", "Max", "Min")
_STEPS = (*_BOUNDS, "Add", "Sub", "Cast")
_MAX_STEPS = 5


def _check(context: Context) -> Iterator[Finding]:
    """A factor before a Round, a bound before or behind it, and a factor behind."""
    for node in context.graph:
        if node.op_type != "Round":
            continue
        before = _factor_before(node)
        behind = _factor_behind(node)
        if before is None or behind is None or not (before[1] or behind[1]):
            continue
        yield RULE.finding(
            context,
            node,
            f"{before[0].name}, {node.name} ... {behind[0].name} are a quantizer written out in float "
            "operators: it costs kernels and saves nothing",
            "export it as QuantizeLinear and DequantizeLinear; `fuseq fix` recognizes it",
            tensor=before[0].inputs[0],
            cost=context.cost_of(context.kernels_of(node)),
            confirmed=bool(context.kernels_of(node)) and not context.simulated,
        )


def _factor_before(node: ir.Node) -> tuple[ir.Node, bool] | None:
    """The Div or Mul by a constant before, and whether a bound stands between."""
    value, bounded = node.inputs[0], False
    for _ in range(_MAX_STEPS):
        producer = value.producer() if value is not None else None
        if producer is None:
            return None
        if producer.op_type in ("Div", "Mul") and split_constant(producer) is not None:
            return producer, bounded
        if producer.op_type not in _STEPS:
            return None
        bounded = bounded or producer.op_type in _BOUNDS
        value = next((v for v in producer.inputs if v is not None and constant(v) is None), None)
    return None


def _factor_behind(node: ir.Node) -> tuple[ir.Node, bool] | None:
    value, bounded = node.outputs[0], False
    for _ in range(_MAX_STEPS):
        users = [use.node for use in value.uses()]
        if len(users) != 1:
            return None
        user = users[0]
        if user.op_type in ("Mul", "Div") and split_constant(user) is not None:
            return user, bounded
        if user.op_type not in _STEPS:
            return None
        bounded = bounded or user.op_type in _BOUNDS
        value = user.outputs[0]
    return None


RULE = Rule(
    code="FQ208",
    name="written-out-quantizer",
    severity="warning",
    summary="A quantizer is written out in float operators.",
    fixable=Fixable("safe", "QuantizeLinear and DequantizeLinear compute the same values"),
    check=_check,
    mend=written_out,
)
