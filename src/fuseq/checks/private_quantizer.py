"""FQ207: quantization in private operators, which hide shapes from every other tool."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import private_operators
from fuseq.checks.rule import Fixable, Rule

_WORDS = ("QuantizeLinear", "DequantizeLinear", "FakeQuant")


def _check(context: Context) -> Iterator[Finding]:
    """QuantizeLinear or DequantizeLinear of another domain than ONNX's (``trt``, ``com.microsoft``)."""
    for node in context.graph:
        if node.domain and any(word in node.op_type for word in _WORDS):
            yield RULE.finding(
                context,
                node,
                f"{node.domain}::{node.op_type} is no ONNX operator: shapes end here for other tools, "
                "and compilers without this plugin refuse the file",
                "export with opset 19 or later and ONNX's own QuantizeLinear; `fuseq fix` rewrites it",
                tensor=node.inputs[0] if node.inputs else None,
            )


RULE = Rule(
    code="FQ207",
    name="private-quantizer",
    severity="error",
    summary="Quantization is written in private operators.",
    fixable=Fixable("safe", "ONNX's own operators compute the same with the same scales"),
    check=_check,
    mend=private_operators,
)
