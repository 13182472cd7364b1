"""Refuse a model that is quantized already where a float one is needed."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.errors import ModelError

_Q_AND_DQ = ("QuantizeLinear", "DequantizeLinear")
"""How their names end, the private ones too (TRT_FP8QuantizeLinear)."""

_INTEGER_OPERATORS = frozenset(
    {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"}
)
_MICROSOFT_PREFIXES = ("QLinear", "QGemm", "QAttention", "DynamicQuantize", "MatMulInteger")


def quantization_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Nodes that quantize, dequantize or compute on integers, whatever tool wrote them.

    Subgraphs of control flow are left out: they stay as they are.
    """
    return [n for n in graph if n.op_type.endswith(_Q_AND_DQ) or is_integer_operator(n)]


def check_float(model: ir.Model, name: str) -> None:
    """Refuse a quantized model; another round of Q/DQ would add its rounding to the one that is there.

    Args:
        model: As loaded.
        name: What the sentence calls it.

    Raises:
        ModelError: The model has Q/DQ, operators on integers (QOperator) or run-time quantization.
    """
    found = quantization_nodes(model.graph)
    if not found:
        return
    first = found[0]
    raise ModelError(
        f"{name}: is quantized already ({len(found)} quantization nodes, the first is "
        f"{first.op_type} {first.name!r}); give the float model, or use `fuseq fix`, which places the "
        "quantization anew with the scales of the file, and with --calib finds what it lacks."
    )


def is_integer_operator(node: ir.Node) -> bool:
    """An operator on quantized tensors: ONNX's five, or ONNX Runtime's own (``com.microsoft``)."""
    if node.domain == "com.microsoft":
        return node.op_type.startswith(_MICROSOFT_PREFIXES)
    return node.domain == "" and node.op_type in _INTEGER_OPERATORS
