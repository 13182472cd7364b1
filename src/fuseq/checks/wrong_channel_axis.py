"""FQ303: weight scales along another axis than the output channels."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.reading import Layer
from fuseq.checks.rule import Fixable, Rule
from fuseq.checks.scale_mends import right_axis
from fuseq.passes.quantizers import Quantizer, read_quantizer


def _check(context: Context) -> Iterator[Finding]:
    """The axis of the weight's DequantizeLinear, followed through Transposes to the layer, is not the
    axis of output channels: Conv 0, ConvTranspose 1, Gemm 1 (0 with transB), MatMul the last."""
    for layer in context.layers:
        node = layer.weight_dequantize
        by = read_quantizer(node) if node is not None else "float"
        if node is None or not isinstance(by, Quantizer) or by.axis is None:
            continue
        axis = _axis_at_layer(layer, node, by.axis)
        if axis is None or axis == layer.channel_axis:
            continue
        yield RULE.finding(
            context,
            node,
            f"the weight of {layer.node.op_type} {layer.node.name} has its scales along axis {axis} as "
            f"the layer reads it, and the output channels are axis {layer.channel_axis}; the scale "
            "then varies inside each sum, and no kernel computes that in 8 bits",
            "quantize the weight along its output channels, or with one scale",
            tensor=layer.stored,
            cost=context.cost_of(context.kernels_of(layer.node)),
            confirmed=not context.simulated
            and any(k.compute_dtype in ("fp16", "fp32") for k in context.kernels_of(layer.node)),
        )


def _axis_at_layer(layer: Layer, dequantize: ir.Node, axis: int) -> int | None:
    """Where the axis is after the steps behind ``dequantize``; None when a step reshapes."""
    behind = layer.steps[layer.steps.index(dequantize) + 1 :]
    for step in behind:
        if step.op_type == "Transpose":
            rank = len(layer.shape)
            perm = step.attributes.get_ints("perm", None) or list(reversed(range(rank)))
            axis = list(perm).index(axis)
        elif step.op_type not in ("Identity", "Cast"):
            return None
    return axis


RULE = Rule(
    code="FQ303",
    name="wrong-channel-axis",
    severity="warning",
    summary="Weight scales lie along another axis than the output channels.",
    fixable=Fixable("unsafe", "the weight is rounded anew along the right axis"),
    check=_check,
    mend=right_axis,
)
