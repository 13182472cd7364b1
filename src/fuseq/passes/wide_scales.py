"""FP32 scales beside FP16 or BF16 tensors, as Q/DQ of opset 23 allow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant
from fuseq.passes.names import value_names
from fuseq.passes.quantizers import is_dequantize, is_quantize
from fuseq.passes.splice import new_constant

WIDE_SCALE_OPSET = 23
"""From it on the scale of Q/DQ has a type of its own, and DequantizeLinear names that of its output.
Between 21 and 23 every other operator only got more types (ONNX, docs/Changelog.md)."""

_IR_VERSION = 11
_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def float32_scales(model: ir.Model) -> dict[str, np.ndarray]:
    """The FP32 scales of Q and DQ by node name, before the graph gets its type."""
    found = {}
    for node in model.graph:
        tensor = constant(node.inputs[1]) if is_quantize(node) or is_dequantize(node) else None
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT:
            found[node.name or ""] = tensor.numpy()
    return found


def widen_scales(model: ir.Model, scales: Mapping[str, np.ndarray]) -> None:
    """Give Q and DQ beside 16-bit floats their FP32 scales back, in place.

    1. QuantizeLinear reads the FP32 scale; its input keeps its type.
    2. DequantizeLinear too, and names the type of its output. It has no zero point, which is 0: onnx-tensorrt
       takes ``output_dtype`` for the type of the zero point where there is one.
    3. The opset becomes :data:`WIDE_SCALE_OPSET`, if it is older.

    Args:
        model: Typed, symmetric Q/DQ in it.
        scales: From :func:`float32_scales` of the same graph.
    """
    graph, taken = model.graph, value_names(model)
    made: dict[ir.Value, ir.Value] = {}
    for node in graph:
        old = node.inputs[1] if (node.name or "") in scales else None
        if old is None or old.dtype not in _NARROW:
            continue
        if old not in made:
            name = old.name or "scale"
            made[old] = new_constant(graph, f"{name}_fp32", scales[node.name or ""], taken)
        node.replace_input_with(1, made[old])
        if is_dequantize(node):  # case 2
            out = node.outputs[0].dtype
            assert out is not None, "widened after the types are set"
            node.attributes["output_dtype"] = ir.AttrInt64("output_dtype", int(out))
            node.resize_inputs(2)
    for value in [*made, *graph.initializers.values()]:
        if not value.uses() and not value.is_graph_output() and value.is_initializer():
            graph.initializers.pop(value.name or "", None)
    if made:
        model.opset_imports[""] = max(model.opset_imports.get("", 0), WIDE_SCALE_OPSET)
        model.ir_version = max(model.ir_version or 0, _IR_VERSION)
