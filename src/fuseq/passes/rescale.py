"""Give a pair or a stored weight another scale; a weight's integers are computed again from its values."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.drop_pair import remove_unread, value_names_of
from fuseq.passes.matching import constant
from fuseq.passes.quantizers import (
    Quantizer,
    dequantized_values,
    is_dequantize,
    is_quantize,
    quantized_values,
    read_quantizer,
)
from fuseq.passes.splice import new_constant


def weight_values(dequantize: ir.Node) -> np.ndarray | None:
    """Float32 values of a weight: before its Q where one stands, else what its DQ gives."""
    by, stored = read_quantizer(dequantize), dequantize.inputs[0]
    maker = stored.producer() if stored is not None else None
    if is_quantize(maker) and maker is not None:
        tensor = constant(maker.inputs[0])
        return None if tensor is None else tensor.numpy().astype(np.float32)
    tensor = constant(stored)
    if tensor is None or isinstance(by, str) or by.problem:
        return None
    return dequantized_values(tensor.numpy(), by)


def store_weight(graph: ir.Graph, dequantize: ir.Node, by: Quantizer) -> bool:
    """Store the weight behind ``dequantize`` with the quantizer ``by``, and drop a Q before it.

    Returns:
        False where the weight is no constant; then nothing is changed.
    """
    values, old = weight_values(dequantize), dequantize.inputs[0]
    if values is None or old is None:
        return False
    maker = old.producer()
    taken = value_names_of(graph)
    source = maker.inputs[0] if maker is not None else old
    name = (source.name if source is not None else None) or "weight"
    stored = new_constant(
        graph, f"{name.removesuffix('_quantized')}_quantized",
        ir.Tensor(quantized_values(values, by), dtype=by.stored), taken,
    )  # fmt: skip
    dequantize.replace_input_with(0, stored)
    set_quantizer(graph, dequantize, by)
    if maker is not None:
        remove_unread(graph, maker)
    return True


def set_quantizer(graph: ir.Graph, node: ir.Node, by: Quantizer) -> None:
    """Write scale, zero point and axis of ``by`` on one Q or DQ; the scale keeps its float type."""
    taken = value_names_of(graph)
    old = node.inputs[1]
    dtype = old.dtype if old is not None and old.dtype is not None else ir.DataType.FLOAT
    scale = new_constant(
        graph, f"{old.name if old is not None else node.name}_new",
        np.asarray(by.scale, dtype.numpy()), taken,
    )  # fmt: skip
    zero = new_constant(
        graph, f"{node.name}_zero_point",
        ir.Tensor(by.zero_point.astype(by.stored.numpy()), dtype=by.stored), taken,
    )  # fmt: skip
    node.replace_input_with(1, scale)
    if len(node.inputs) > 2:
        node.replace_input_with(2, zero)
    else:
        node.resize_inputs(3)
        node.replace_input_with(2, zero)
    node.attributes.pop("axis", None)
    node.attributes.pop("output_dtype", None)
    if by.axis is not None:
        node.attributes["axis"] = ir.AttrInt64("axis", by.axis)
    if is_quantize(node):
        node.outputs[0].type = ir.TensorType(by.stored)


def set_pair(graph: ir.Graph, quantize: ir.Node, by: Quantizer) -> bool:
    """Write ``by`` on a Q of an activation and every DQ that reads it.

    Returns:
        False where something else reads the integers; then nothing is changed.
    """
    readers = [use.node for use in quantize.outputs[0].uses()]
    if not all(is_dequantize(reader) for reader in readers):
        return False
    for node in (quantize, *readers):
        set_quantizer(graph, node, by)
    return True
