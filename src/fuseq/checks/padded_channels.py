"""FQ110: channels that no kernel of the format takes as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import float_layer
from fuseq.checks.reading import Layer
from fuseq.checks.rule import Fixable, Rule
from fuseq.placement.planner import convolution_refusal
from fuseq.targets.base import Kernel

_WASTE = 1.25


def _check(context: Context) -> Iterator[Finding]:
    """1. The target has no kernel of the format for the layer's channels or window: fewer channels than
    its smallest kernel has, or (FP8 on full TensorRT) no multiple of 16, or a window over 32 positions.

    2. The engine stores a quantized tensor of the layer at least a quarter larger than its values,
       and the layer's own kernels take longer than in float.
    """
    rules = context.rules
    if rules is None:
        return
    for layer in context.layers:
        if not (layer.node.op_type == "Conv" and layer.is_quantized) or layer.groups > 1:
            continue
        channels = layer.read_shape[1]
        refusal = convolution_refusal("Conv", layer.read_shape, layer.groups, rules)
        if refusal:
            yield _finding(context, layer, refusal)
            continue
        padded = [k for k in context.kernels_of(layer.node) if _is_padded(k)]
        if padded and context.loss_us(layer.node) > 0 and not context.gains(layer.node):
            yield _finding(
                context,
                layer,
                f"the engine pads the {channels} channels of its quantized data "
                f"({padded[0].inputs[0].nbytes} bytes stored), and it takes longer than in float",
                tuple(padded),
            )


def _finding(
    context: Context, layer: Layer, message: str, kernels: tuple[Kernel, ...] = ()
) -> Finding:
    return RULE.finding(
        context,
        layer.node,
        message,
        "leave this layer in float, or choose channels that are a multiple of 16",
        tensor=layer.data,
        cost=context.cost_of(kernels),
        confirmed=bool(kernels) and not context.simulated,
    )


def _is_padded(kernel: Kernel) -> bool:
    """The first quantized input is stored larger than its values."""
    for tensor in kernel.inputs:
        if tensor.dtype in ("int8", "fp8"):  # one byte a value
            return tensor.nbytes >= _WASTE * math.prod(tensor.shape) > 0
    return False


RULE = Rule(
    code="FQ110",
    name="padded-channels",
    severity="warning",
    summary="A quantized convolution has channels that force padding or that no kernel takes.",
    fixable=Fixable("safe", "without its pairs the convolution computes in float"),
    check=_check,
    mend=float_layer,
)
