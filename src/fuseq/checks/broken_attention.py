"""FQ106: attention with some of its four pairs, so that its fused kernel is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.reading import is_float_tensor
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.add_pair import add_pair
from fuseq.passes.drop_pair import drop_pair
from fuseq.passes.matching import constant
from fuseq.passes.quantizers import Quantizer, is_dequantize, is_quantize, read_quantizer
from fuseq.targets.base import Engine, KernelType

_MOVES = frozenset(
    {"Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze", "Gather", "Expand", "Identity",
     "Cast", "Concat"}
)  # fmt: skip
_SCORE_STEPS = frozenset({"Add", "Mul", "Div", "Sub", "Where", "Cast", "Identity"})
_MAX_STEPS = 10
_REMOVE = "remove the pairs inside the attention; its linear layers keep theirs"
_ROLES = ("Q", "K", "softmax output", "V")


def _check(context: Context) -> Iterator[Finding]:
    """1. The target fuses attention in the format, and one to three of the four pairs are there.

    2. The target fuses attention in float only, and there are pairs: the fused kernel is lost.
    3. All four are there, and the engine does not fuse it though the float engine does.
    """
    rules = context.rules
    if rules is None or rules.pairs_on_outputs:
        return
    for softmax in context.graph:
        operands = _operands(softmax) if softmax.op_type == "Softmax" else None
        if operands is None:
            continue
        paired = [_has_pair(value) for value in operands]
        if not any(paired) or _is_fused(context.engine, softmax):
            continue
        if all(paired) and not rules.attention and not _is_fused(context.float_engine, softmax):
            continue
        missing = [role for role, has in zip(_ROLES, paired, strict=True) if not has]
        if rules.attention:  # case 2
            message, fix = rules.attention, _REMOVE
        elif not missing:  # case 3
            message = "its attention has all four pairs, but is no fused kernel as it is in float"
            fix = _REMOVE
        else:  # case 1
            message = (
                f"its attention has no pair on {', '.join(missing)}, so it is not one fused kernel "
                "in either type"
            )
            fix = (
                "add the missing pairs (the softmax output needs no calibration: its largest value "
                f"is 1), or remove all of them; Q, K, V and the softmax output in {context.format}"
            )
        yield RULE.finding(
            context,
            softmax,
            message,
            fix,
            tensor=operands[_ROLES.index(missing[0])] if missing else operands[0],
            cost=context.cost_of(context.kernels_of(softmax)),
            confirmed=context.engine is not None and not context.simulated,
        )


def _mend(model: ir.Model, finding: Finding) -> str:
    """1. Only the softmax output lacks a pair: it gets one, whose largest value 1 is known.

    2. Else all pairs of the attention go; what they cut below 0 stays.
    """
    graph = model.graph
    softmax = next((node for node in graph if node.name == finding.node), None)
    operands = _operands(softmax) if softmax is not None else None
    if softmax is None or operands is None:
        return ""
    pairs = [_pair_of(value) for value in operands]
    if finding.fix != _REMOVE and [pair is None for pair in pairs] == [False, False, True, False]:
        by = read_quantizer(pairs[0]) if pairs[0] is not None else ""
        use = next(iter(softmax.outputs[0].uses()))
        if isinstance(by, Quantizer) and not by.zero_point.any():
            one = dataclasses.replace(
                by,
                scale=np.asarray(1 / by.qmax, np.float32),
                zero_point=np.asarray(0, np.int64),
                axis=None,
            )
            if add_pair(model, use.node, use.idx, one):
                return f"the softmax output got a pair of scale 1/{by.qmax:g}"
    found = {pair: role for pair, role in zip(pairs, _ROLES, strict=True) if pair is not None}
    gone = [role for pair, role in found.items() if drop_pair(graph, pair)]
    return f"{', '.join(gone)} are read in float" if gone else ""


def _is_fused(engine: Engine | None, softmax: ir.Node) -> bool:
    """The engine is there and runs it as one attention kernel."""
    return engine is not None and any(
        kernel.type is KernelType.ATTENTION and (softmax.name or "") in kernel.nodes
        for kernel in engine.kernels
    )


def _operands(softmax: ir.Node) -> tuple[ir.Value, ...] | None:
    """Q, K, the product's left operand (softmax output) and V, as the two MatMuls read them."""
    uses = [use for use in softmax.outputs[0].uses() if not is_quantize(use.node)]
    pairs = [use.node for use in softmax.outputs[0].uses() if is_quantize(use.node)]
    for quantize in pairs:
        uses += [u for dq in quantize.outputs[0].uses() for u in dq.node.outputs[0].uses()]
    products = [use.node for use in uses if use.node.op_type == "MatMul" and use.idx == 0]
    scores = _scores(softmax.inputs[0])
    if len(products) != 1 or scores is None:
        return None
    found = (*scores.inputs[:2], *products[0].inputs[:2])
    operands = tuple(value for value in found if is_float_tensor(value) and value is not None)
    return operands if len(operands) == 4 else None


def _scores(value: ir.Value | None) -> ir.Node | None:
    """The MatMul of two activations before the mask and scale."""
    for _ in range(_MAX_STEPS):
        producer = value.producer() if value is not None else None
        if producer is None:
            return None
        if producer.op_type == "MatMul":
            both = all(is_float_tensor(v) and constant(v) is None for v in producer.inputs[:2])
            return producer if both else None
        if is_dequantize(producer) or is_quantize(producer) or producer.op_type in _SCORE_STEPS:
            value = _towards_scores(producer)
        else:
            return None
    return None


def _towards_scores(node: ir.Node) -> ir.Value | None:
    """The operand of the largest rank that is computed; of Where the chosen values."""
    inputs = node.inputs[1:] if node.op_type == "Where" else node.inputs
    computed = [v for v in inputs if v is not None and v.producer() is not None]
    computed = [v for v in computed if constant(v) is None]
    return next((v for v in computed if _reaches_product(v)), computed[0] if computed else None)


def _reaches_product(value: ir.Value) -> bool:
    current: ir.Value | None = value
    for _ in range(_MAX_STEPS):
        producer = current.producer() if current is not None else None
        if producer is None:
            return False
        if producer.op_type == "MatMul":
            return True
        if producer.op_type not in _SCORE_STEPS and not is_dequantize(producer):
            return is_quantize(producer)
        current = next((v for v in producer.inputs if is_float_tensor(v)), None)
    return False


def _has_pair(value: ir.Value) -> bool:
    return _pair_of(value) is not None


def _pair_of(value: ir.Value) -> ir.Node | None:
    """The DequantizeLinear that makes it, also before moves and a factor."""
    current: ir.Value | None = value
    for _ in range(_MAX_STEPS):
        producer = current.producer() if current is not None else None
        if producer is None:
            return None
        if is_dequantize(producer):
            return producer
        if producer.op_type in ("Mul", "Div"):
            current = next((v for v in producer.inputs if constant(v) is None), None)
        elif producer.op_type in _MOVES:
            current = producer.inputs[0]
        else:
            return None
    return None


RULE = Rule(
    code="FQ106",
    name="broken-attention",
    severity="warning",
    summary="Attention has only some of its four pairs, or pairs that its fused kernel cannot take.",
    fixable=Fixable("unsafe", "pairs are added with a calibrated scale, or all are removed"),
    check=_check,
    mend=_mend,
)
