"""Scales and zero points that a file computes from constants become constants."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, is_op
from fuseq.passes.names import value_names
from fuseq.passes.quantizers import is_dequantize, is_quantize
from fuseq.passes.splice import new_constant

_LARGEST = 1 << 20
_DEPTH = 6


def fold_quantizer_constants(model: ir.Model) -> list[str]:
    """Compute scale and zero point of every Q and DQ of the main graph, in place, through:

    1. Cast and Identity (torchao's PT2E export stores scales as doubles behind a Cast);
    2. ConstantOfShape (torch.onnx's zero points of INT32 biases, behind a Cast);
    3. Mul of two constants (a bias scale, input x weight).
    """
    taken = value_names(model)
    for node in list(model.graph):
        if not (is_quantize(node) or is_dequantize(node)):
            continue
        for index in range(1, min(len(node.inputs), 3)):
            value = node.inputs[index]
            if value is None or value.producer() is None or constant(value) is not None:
                continue
            array = _computed(value, _DEPTH)
            if array is not None:
                made = new_constant(model.graph, f"{value.name}_constant", array, taken)
                node.replace_input_with(index, made)
    return []


def _computed(value: ir.Value | None, depth: int) -> ir.TensorProtocol | None:
    tensor = constant(value)
    if tensor is not None:
        return tensor if tensor.size <= _LARGEST else None
    node = value.producer() if value is not None else None
    if node is None or depth == 0:
        return None
    inputs = [_computed(each, depth - 1) for each in node.inputs]
    first = inputs[0] if inputs else None
    if first is None or any(each is None for each in inputs):
        return None
    if is_op(node, "Identity"):
        return first
    if is_op(node, "Cast"):
        wanted = ir.DataType(node.attributes["to"].as_int())
        return ir.Tensor(first.numpy().astype(wanted.numpy()), dtype=wanted)
    if is_op(node, "ConstantOfShape"):
        return _filled(node, first.numpy())
    if is_op(node, "Mul") and len(inputs) == 2 and inputs[1] is not None:
        return ir.tensor(np.asarray(first.numpy() * inputs[1].numpy()))
    return None


def _filled(node: ir.Node, shape: np.ndarray) -> ir.TensorProtocol | None:
    if shape.size and (shape.min() < 0 or np.prod(shape.astype(np.float64)) > _LARGEST):
        return None
    attribute = node.attributes.get("value")
    fill = attribute.as_tensor().numpy().reshape(-1)[0] if attribute is not None else np.float32(0)
    return ir.tensor(np.full(tuple(int(size) for size in shape), fill))
