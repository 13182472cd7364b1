"""FQ205: the file's opset does not know what its Q/DQ use."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.mends import raise_the_opset
from fuseq.checks.rule import Fixable, Rule
from fuseq.passes.matching import constant
from fuseq.passes.quantizers import is_dequantize, is_quantize

_FIRST_OPSET = {
    ir.DataType.FLOAT8E4M3FN: 19,
    ir.DataType.FLOAT8E5M2: 19,
    ir.DataType.INT4: 21,
    ir.DataType.UINT4: 21,
    ir.DataType.INT16: 21,
    ir.DataType.UINT16: 21,
    ir.DataType.FLOAT4E2M1: 23,
}
"""First opset whose QuantizeLinear and DequantizeLinear take the type (ONNX Operators.md)."""
_PER_AXIS_OPSET = 13
_BLOCK_OPSET = 21


def _check(context: Context) -> Iterator[Finding]:
    """1. A stored type that the opset does not know. 2. One scale a channel below opset 13, which has no
    attribute ``axis``. 3. One scale a block below opset 21."""
    if context.model is None:
        return
    opset = context.model.opset_imports.get("", 0)
    for node in context.graph:
        if not (is_quantize(node) or is_dequantize(node)):
            continue
        what, first = _needs(node)
        if opset < first:
            yield RULE.finding(
                context,
                node,
                f"{node.op_type} uses {what}, which begins with opset {first}; the file says opset "
                f"{opset}",
                f"raise the opset to {first} or more; `fuseq fix` does",
                tensor=node.inputs[0],
            )


def _needs(node: ir.Node) -> tuple[str, int]:
    scale = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    source = node.inputs[0] if is_dequantize(node) else zero
    dtype = source.dtype if source is not None else None
    needs = [("int8", 10)]
    if dtype in _FIRST_OPSET:
        needs.append((dtype.name.lower(), _FIRST_OPSET[dtype]))
    if scale is not None and len(scale.shape) == 1 and scale.size > 1:
        needs.append(("one scale a channel", _PER_AXIS_OPSET))
    if node.attributes.get_int("block_size", 0):
        needs.append(("one scale a block", _BLOCK_OPSET))
    return max(needs, key=lambda need: need[1])


RULE = Rule(
    code="FQ205",
    name="old-opset",
    severity="error",
    summary="The opset is below what the format or granularity needs.",
    fixable=Fixable("safe", "raising the opset changes no value"),
    check=_check,
    mend=raise_the_opset,
)
