"""FQ102: a layer with weights of which only the data or only the weight is quantized."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import float_layer
from fuseq.checks.reading import Layer
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.matching import constant

_WEIGHT_ONLY = frozenset({ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT4E2M1})


def _check(context: Context) -> Iterator[Finding]:
    """1. The weight is quantized and the data is not; 4-bit weights alone are a scheme of their own.

    2. The data is quantized and the weight is not.
    """
    for layer in context.layers:
        has_data = layer.data_dequantize is not None
        has_weight = layer.weight_dequantize is not None
        if has_data == has_weight:
            continue
        if has_weight and _is_weight_only(layer):
            continue
        there, missing = ("data", "weight") if has_data else ("weight", "data")
        yield RULE.finding(
            context,
            layer.node,
            f"{layer.node.op_type} reads a quantized {there} and a float {missing}, so it is "
            f"computed in float and the {there} is dequantized for nothing",
            f"add the pair on the {missing}, or remove the one on the {there}",
            tensor=layer.stored if has_data else layer.data,
            cost=context.cost_of(context.alone(layer.data_dequantize, layer.weight_dequantize)),
            confirmed=_computes_in_float(context, layer),
        )


def _is_weight_only(layer: Layer) -> bool:
    tensor = constant(layer.stored)
    return tensor is not None and tensor.dtype in _WEIGHT_ONLY


def _computes_in_float(context: Context, layer: Layer) -> bool:
    dtypes = {kernel.compute_dtype for kernel in context.kernels_of(layer.node)} - {""}
    return bool(dtypes) and not context.simulated and dtypes <= {"fp32", "fp16", "bf16", "tf32"}


RULE = Rule(
    code="FQ102",
    name="half-quantized-layer",
    severity="warning",
    summary="A layer reads a quantized data or weight beside a float one.",
    fixable=Fixable("unsafe", "the missing scale has to be calibrated or the layer left in float"),
    check=_check,
    mend=float_layer,
)
