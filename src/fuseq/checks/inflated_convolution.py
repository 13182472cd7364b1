"""FQ109: a depthwise or grouped convolution that quantization makes larger or unsupported."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import float_layer
from fuseq.checks.reading import Layer
from fuseq.checks.rule import Fixable, Rule
from fuseq.placement.patterns import ACTIVATIONS, epilogue

_GROUP_CHANNELS = 4


def _check(context: Context) -> Iterator[Finding]:
    """1. Depthwise, where the target has no kernel for it (``depthwise``).

    2. Depthwise behind an activation that the target's kernel does not fuse.
    3. Grouped with fewer than four channels a group, where the target pads each group to four.
    """
    if context.rules is None:
        return
    for layer in context.layers:
        reason = _reason(layer, context) if layer.is_quantized and layer.groups > 1 else ""
        if not reason or context.gains(layer.node):
            continue
        kernels = context.kernels_of(layer.node)
        yield RULE.finding(
            context,
            layer.node,
            f"{layer.node.op_type} with {layer.groups} groups is quantized: {reason}",
            "remove its pairs and leave it in float",
            tensor=layer.data,
            cost=context.cost_of((*kernels, *context.alone(layer.data_dequantize))),
            confirmed=bool(kernels) and not context.simulated,
        )


def _reason(layer: Layer, context: Context) -> str:
    rules = context.rules
    if rules is None:
        return ""
    if layer.is_depthwise:
        if rules.depthwise:
            return rules.depthwise  # case 1
        fused = rules.depthwise_activations
        for step in epilogue(layer.node) if fused is not None else ():
            if step.op_type in ACTIVATIONS and fused is not None and step.op_type not in fused:
                return f"no depthwise kernel fuses {step.op_type}"  # case 2
        return ""
    shape = layer.read_shape
    narrow = len(shape) > 1 and shape[1] < _GROUP_CHANNELS
    return f"each group's {shape[1]} channels are padded to 4" if narrow and rules.depthwise else ""


RULE = Rule(
    code="FQ109",
    name="inflated-convolution",
    severity="warning",
    summary="A depthwise or grouped convolution is quantized where that pads or does not build.",
    fixable=Fixable("safe", "without its pairs the convolution computes in float"),
    check=_check,
    mend=float_layer,
)
