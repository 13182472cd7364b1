"""FQ202: unsigned types and zero points, which GPU compilers refuse."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.rule import Fixable, Rule
from fuseq.checks.scale_mends import recentre
from fuseq.passes.quantizers import Quantizer, is_dequantize, is_quantize, read_quantizer

_UNSIGNED = frozenset({ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT4})


def _check(context: Context) -> Iterator[Finding]:
    """1. The stored type is unsigned. 2. The zero point is not 0. Reported once a tensor, at the Q."""
    if not context.is_gpu:
        return
    for node in context.graph:
        if not (is_quantize(node) or is_dequantize(node)):
            continue
        source = node.inputs[0]
        producer = source.producer() if source is not None else None
        if is_dequantize(node) and producer is not None and is_quantize(producer):
            continue  # its QuantizeLinear is reported
        by = read_quantizer(node)
        what = _fault(by) if isinstance(by, Quantizer) else ""
        if what:
            yield RULE.finding(
                context,
                node,
                f"{node.op_type} stores {what}; TensorRT quantizes symmetrically, to int8 with "
                "zero point 0",
                "quantize with symmetric INT8 (QuantType.QInt8, ActivationSymmetric), or let "
                "`fuseq fix` recentre it: a range around 128 moves without loss",
                tensor=source,
            )


def _fault(by: Quantizer) -> str:
    if by.stored in _UNSIGNED:
        return by.stored.name.lower()
    if by.zero_point.any():
        points = by.zero_point.reshape(-1)
        return f"zero point {points[points.nonzero()[0][0]]}"
    return ""


RULE = Rule(
    code="FQ202",
    name="asymmetric-quantizer",
    severity="error",
    summary="A Q or DQ has an unsigned type or a zero point that is not 0.",
    fixable=Fixable("unsafe", "only ranges centred on the zero point keep their values exactly"),
    check=_check,
    mend=recentre,
)
