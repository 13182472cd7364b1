"""FQ108: products of one input that merge into one GEMM have weights of different scales."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.reading import Layer, float_source
from fuseq.checks.rule import Fixable, Rule
from fuseq.checks.scale_mends import one_merged_scale
from fuseq.passes.quantizers import Quantizer, read_quantizer


def _check(context: Context) -> Iterator[Finding]:
    """Linear layers that read one tensor, each with one weight scale, and the scales differ."""
    if context.rules is None or not context.rules.merges_linear:
        return
    by_input: dict[ir.Value, list[tuple[Layer, float]]] = {}
    for layer in context.layers:
        scale = _one_scale(layer)
        if not layer.is_conv and layer.is_quantized and scale is not None:
            by_input.setdefault(float_source(layer.data), []).append((layer, scale))
    for value, layers in by_input.items():
        scales = {scale for _, scale in layers}
        if len(scales) < 2 or context.gains(layers[0][0].node):
            continue
        names = ", ".join(layer.node.name or "" for layer, _ in layers)
        yield RULE.finding(
            context,
            layers[0][0].node,
            f"{names} read one tensor and merge into one GEMM, but their {len(scales)} weight scales "
            "differ, which costs a kernel over the whole output",
            "give these weights one scale, the largest, or one scale a channel",
            tensor=value,
        )


def _one_scale(layer: Layer) -> float | None:
    node = layer.weight_dequantize
    by = read_quantizer(node) if node is not None else "no pair"
    return float(by.scale) if isinstance(by, Quantizer) and by.axis is None else None


RULE = Rule(
    code="FQ108",
    name="unequal-merged-scales",
    severity="warning",
    summary="GEMMs that merge into one have weights of different scales.",
    fixable=Fixable("unsafe", "the weights are rounded anew with the largest scale"),
    check=_check,
    mend=one_merged_scale,
)
