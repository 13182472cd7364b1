"""Private spellings of QuantizeLinear and DequantizeLinear become ONNX's own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant
from fuseq.passes.names import value_names
from fuseq.passes.repairs import Repair
from fuseq.passes.splice import new_constant

TRT_DOMAIN = "trt"
MICROSOFT_DOMAIN = "com.microsoft"


def standard_qdq(model: ir.Model) -> list[Repair]:
    """Rewrite, in place:

    1. ``trt::TRT_FP8QuantizeLinear(x, scale)`` and ``TRT_FP8DequantizeLinear``, which ModelOpt's
       PyTorch export writes: QuantizeLinear and DequantizeLinear with an E4M3 zero point 0.
       Shapes and types, lost behind a private operator, are written again.
    2. ``trt::TRT_INT8QuantizeLinear`` and its inverse, with an INT8 zero point.
    3. ``trt::QuantizeLinear`` and ``trt::DequantizeLinear``, which ModelOpt 0.47's deploy export
       writes for FP8: the same operators. Between the two it declares UINT8; the type is that of the
       zero point, or of the weight.
    4. ``com.microsoft::QuantizeLinear`` and ``DequantizeLinear``, which ONNX Runtime's quantizer
       writes for 16-bit types: the same operators (ONNX Runtime, ContribOperators.md).
    """
    taken = value_names(model)
    zeros: dict[ir.DataType, ir.Value] = {}
    changed: list[str] = []
    for node in list(model.graph):
        stored = _PRIVATE.get((node.domain, node.op_type))
        if stored is not None:  # cases 1 and 2
            if stored not in zeros:
                zeros[stored] = _zero(model.graph, stored, taken)
            _standardize(model.graph, node, [*node.inputs[:2], zeros[stored]], stored)
        elif node.domain in (TRT_DOMAIN, MICROSOFT_DOMAIN) and node.op_type in _STANDARD:
            _standardize(model.graph, node, list(node.inputs), _stored_type(node))  # cases 3 and 4
        else:
            continue
        changed.append(node.name or node.op_type)
    if not changed:
        return []
    text = (
        f"{len(changed)} private Q/DQ operators are ONNX's own QuantizeLinear and DequantizeLinear"
    )
    return [Repair("private", "", tuple(changed), text)]


_STANDARD = ("QuantizeLinear", "DequantizeLinear")
_PRIVATE = {
    (TRT_DOMAIN, "TRT_FP8QuantizeLinear"): ir.DataType.FLOAT8E4M3FN,
    (TRT_DOMAIN, "TRT_FP8DequantizeLinear"): ir.DataType.FLOAT8E4M3FN,
    (TRT_DOMAIN, "TRT_INT8QuantizeLinear"): ir.DataType.INT8,
    (TRT_DOMAIN, "TRT_INT8DequantizeLinear"): ir.DataType.INT8,
}


def _stored_type(node: ir.Node) -> ir.DataType:
    """Type of the integers or FP8 values, by the zero point, else by what is dequantized."""
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if zero is not None:
        return zero.dtype
    source = node.inputs[0]
    known = source.dtype if source is not None and node.op_type == _STANDARD[1] else None
    if node.domain == TRT_DOMAIN:
        return known or ir.DataType.FLOAT8E4M3FN
    return ir.DataType.UINT8


def _standardize(
    graph: ir.Graph, node: ir.Node, inputs: list[ir.Value | None], stored: ir.DataType
) -> None:
    is_quantize = node.op_type.endswith("QuantizeLinear") and "Dequantize" not in node.op_type
    axis = node.attributes.get("axis")
    made = ir.Node(
        "", _STANDARD[0 if is_quantize else 1], inputs, [axis] if axis is not None else [],
        name=node.name, metadata_props=dict(node.metadata_props),
    )  # fmt: skip
    source, scale, old, new = inputs[0], inputs[1], node.outputs[0], made.outputs[0]
    new.shape = source.shape if source is not None and source.shape is not None else old.shape
    floats = scale.dtype if scale is not None and scale.dtype is not None else ir.DataType.FLOAT
    new.type = ir.TensorType(stored if is_quantize else floats)
    graph.insert_before(node, made)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    new.name, old.name = old.name, None


def _zero(graph: ir.Graph, stored: ir.DataType, taken: set[str]) -> ir.Value:
    kind = ml_dtypes.float8_e4m3fn if stored == ir.DataType.FLOAT8E4M3FN else np.int8
    return new_constant(graph, f"zero_{stored.name.lower()}", np.zeros((), kind), taken)
