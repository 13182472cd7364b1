"""FQ203: an INT32 bias behind a DequantizeLinear, which GPU compilers refuse."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import drop_the_pair
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.quantizers import is_dequantize


def _check(context: Context) -> Iterator[Finding]:
    """A DequantizeLinear reads INT32."""
    if not context.is_gpu:
        return
    for node in context.graph:
        source = node.inputs[0] if is_dequantize(node) else None
        if source is None or source.dtype != ir.DataType.INT32:
            continue
        readers = ", ".join(use.node.name or use.node.op_type for use in node.outputs[0].uses())
        yield RULE.finding(
            context,
            node,
            f"the bias of {readers or 'nobody'} is stored as INT32 behind a DequantizeLinear; "
            "TensorRT's parser takes no INT32 there",
            "store the bias in float: `fuseq fix` multiplies it by its scale, which is exact up to "
            "24 bits (ONNX Runtime: extra_options QuantizeBias=False)",
            tensor=source,
        )


RULE = Rule(
    code="FQ203",
    name="quantized-bias",
    severity="error",
    summary="A bias is stored as INT32 behind a DequantizeLinear.",
    fixable=Fixable("safe", "the float bias is the product of the integers and their scale"),
    check=_check,
    mend=drop_the_pair,
)
