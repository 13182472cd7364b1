"""FQ112: a pair between a convolution and the Add that would fuse into it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.float_residual import joined
from fuseq.checks.mends import drop_the_pair
from fuseq.checks.reading import dequantizer, layer_at, quantizer
from fuseq.checks.rule import Fixable, Rule


def _check(context: Context) -> Iterator[Finding]:
    """The target fuses a residual Add (``residual``: identity) or none wants pairs on it (``none``), and
    a pair stands on the edge of a convolution that ends at this Add.

    Both inputs paired counts only where one of them comes straight from a convolution. A pair that
    another reader needs too stays: the convolution then writes 8 bits for all of them.
    """
    rules = context.rules
    if rules is None or rules.residual == "both" or context.format == "fp8":
        return
    for node in context.graph:
        for value in joined(node) or ():
            dequantize = dequantizer(value)
            quantize = quantizer(dequantize) if dequantize is not None else None
            source = quantize.inputs[0] if quantize is not None else None
            producer = source.producer() if source is not None else None
            layer = layer_at(producer) if producer is not None else None
            if layer is None or not layer.is_conv or not layer.is_quantized:
                continue
            if source is None or dequantize is None or not _is_read_once(source, dequantize):
                continue
            alone = context.alone(quantize, dequantize)
            yield RULE.finding(
                context,
                dequantize,
                f"the pair stands between the convolution {layer.node.name} and the Add {node.name}, "
                "which would fuse into it; the Add becomes a kernel of its own",
                "remove this pair; only the other branch of the Add gets one"
                + ("" if rules.residual == "identity" else ", and on this target not even that"),
                tensor=source,
                cost=context.cost_of(alone or context.kernels_of(node)),
                confirmed=not context.simulated and bool(context.kernels_of(node)),
            )
            break


def _is_read_once(source: ir.Value, dequantize: ir.Node) -> bool:
    stored = dequantize.inputs[0]
    values = (source, stored, dequantize.outputs[0])
    return all(value is not None and len(value.uses()) == 1 for value in values)


RULE = Rule(
    code="FQ112",
    name="blocked-residual",
    severity="warning",
    summary="A pair between a convolution and its residual Add keeps them from fusing.",
    fixable=Fixable("safe", "without the pair the sum is rounded once less"),
    check=_check,
    mend=drop_the_pair,
)
