"""FQ111: weight scales a channel where the target then leaves bias and activation unfused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.reading import Layer
from fuseq.checks.rule import Fixable, Rule
from fuseq.checks.scale_mends import one_weight_scale
from fuseq.formats import Format
from fuseq.passes.matching import constant
from fuseq.passes.quantizers import Quantizer, dequantized_values, read_quantizer
from fuseq.placement.weight_noise import MIN_CHANNEL_SQNR_DB


def _check(context: Context) -> Iterator[Finding]:
    """The target fuses one scale (``conv_weights``: tensor), the file has one a channel, and one for all
    would keep the channels accurate (:data:`fuseq.placement.weight_noise.MIN_CHANNEL_SQNR_DB`)."""
    rules = context.rules
    if rules is None or rules.conv_weights != "tensor":
        return
    for layer in context.layers:
        if layer.node.op_type != "Conv" or not layer.is_quantized:
            continue
        if rules.depthwise and layer.is_depthwise:
            continue  # FQ109: it should not be quantized at all
        scales = _scales_a_channel(layer)
        if scales < 2 or context.gains(layer.node) or not _one_would_do(layer, rules.weight):
            continue
        behind = context.kernels_of(layer.node)
        yield RULE.finding(
            context,
            layer.node,
            f"its weight has {scales} scales, one a channel; on this target the convolution then "
            "writes FP32 and a second kernel applies scale, bias and activation",
            "use one scale for the weight: its channels stay accurate "
            f"({MIN_CHANNEL_SQNR_DB:.0f} dB and more)",
            tensor=layer.stored,
            cost=context.cost_of(behind),
            confirmed=not context.simulated
            and any(t.dtype == "fp32" for k in behind for t in k.outputs),
        )


def _scales_a_channel(layer: Layer) -> int:
    by = read_quantizer(layer.weight_dequantize) if layer.weight_dequantize else "float"
    return by.scale.size if isinstance(by, Quantizer) and by.axis is not None else 0


def _one_would_do(layer: Layer, fmt: Format) -> bool:
    """As the planner asks it: noise of one step is step^2 / 12 in every channel."""
    tensor, node = constant(layer.stored), layer.weight_dequantize
    by = read_quantizer(node) if node is not None else "float"
    if tensor is None or isinstance(by, str) or by.axis is None:
        return False
    if fmt.is_float:
        return True
    array = tensor.numpy()
    if array.dtype.kind in "iu":
        array = dequantized_values(array, by)
    channels = np.moveaxis(array.astype(np.float32), by.axis, 0).reshape(array.shape[by.axis], -1)
    step = float(np.abs(channels).max()) / fmt.qmax
    power = np.square(channels).mean(axis=1)
    power = power[power > 0]
    if step == 0 or not power.size:
        return True
    return float(np.percentile(10 * np.log10(power * 12 / step**2), 10)) >= MIN_CHANNEL_SQNR_DB


RULE = Rule(
    code="FQ111",
    name="unfused-epilogue",
    severity="warning",
    summary="Weight scales a channel keep the convolution's epilogue out of its kernel.",
    fixable=Fixable("unsafe", "the weights are rounded anew with one scale"),
    check=_check,
    mend=one_weight_scale,
)
