"""Put one Q/DQ pair between a tensor and one of its readers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.names import fresh, value_names
from fuseq.passes.quantizers import Quantizer
from fuseq.passes.splice import new_constant, typed


def add_pair(model: ir.Model, reader: ir.Node, index: int, by: Quantizer) -> bool:
    """Let input ``index`` of ``reader`` come out of a new pair, in place.

    1. The scale is stored in the tensor's own type, as strong typing wants it.
    2. Refused: a scale a channel, a tensor of unknown type, and one that has a pair already.

    Args:
        model: The model.
        reader: A node of its main graph.
        index: Which of its inputs.
        by: Scale, zero point and stored type of the pair.

    Returns:
        False where it was refused; then nothing is changed.
    """
    value = reader.inputs[index]
    if value is None or value.dtype is None or by.axis is not None:
        return False
    maker = value.producer()
    if maker is not None and maker.op_type == "DequantizeLinear":
        return False
    graph = model.graph
    taken, name = value_names(model), value.name or "input"
    scale = new_constant(graph, f"{name}_scale", by.scale.astype(value.dtype.numpy()), taken)
    zero_values = np.asarray(by.zero_point).astype(by.stored.numpy())
    zero = new_constant(graph, f"{name}_zero_point", ir.Tensor(zero_values, dtype=by.stored), taken)
    quantize = ir.node("QuantizeLinear", [value, scale, zero], name=f"{name}_quantize")
    typed(quantize, by.stored, value.shape)
    quantize.outputs[0].name = fresh(f"{name}_quantized", taken)
    dequantize = ir.node(
        "DequantizeLinear", [quantize.outputs[0], scale, zero], name=f"{name}_dequantize"
    )
    typed(dequantize, value.dtype, value.shape)
    dequantize.outputs[0].name = fresh(f"{name}_dequantized", taken)
    graph.insert_before(reader, [quantize, dequantize])
    reader.replace_input_with(index, dequantize.outputs[0])
    return True
