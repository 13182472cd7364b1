"""FQ110: channels that no kernel of the format takes as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.reading import Layer
from fuseq.checks.rule import Fixable, Rule
from fuseq.targets.base import Kernel

_FP8_CHANNELS = 16
_WASTE = 1.25


def _check(context: Context) -> Iterator[Finding]:
    """1. Fewer input channels a group than the target's smallest kernel has (``min_conv_channels``).

    2. FP8 on full TensorRT: channels that are no multiple of 16 are refused.
    3. The engine stores a quantized tensor of the layer at least a quarter larger than its values,
       and the layer's own kernels take longer than in float.
    """
    rules = context.rules
    if rules is None:
        return
    for layer in context.layers:
        if not (layer.node.op_type == "Conv" and layer.is_quantized) or layer.groups > 1:
            continue
        channels = layer.read_shape[1]
        misfit = rules.activation.is_float and rules.min_conv_channels >= _FP8_CHANNELS
        if channels < rules.min_conv_channels or (misfit and channels % _FP8_CHANNELS):
            yield _finding(
                context,
                layer,
                f"no {context.format} convolution kernel takes {channels} input channels"
                + (f", which is no multiple of {_FP8_CHANNELS}" if misfit else ""),
            )
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
)
