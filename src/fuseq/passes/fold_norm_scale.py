"""A constant factor behind LayerNormalization folds into its scale and bias."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, integer_attribute, is_op, only_reader, split_constant
from fuseq.passes.names import value_names
from fuseq.passes.splice import bypass, new_constant


def fold_norm_scales(model: ir.Model) -> list[str]:
    """Rewrite ``LayerNormalization(x, g, b) * m`` into ``LayerNormalization(x, g * m, b * m)``, in place.

    1. ``m`` is one number, or varies along the last axis alone; the normalization is over that axis.
    2. Div by a constant likewise.

    Equal but for rounding: the normalization's last steps are ``* g + b``. SmoothQuant writes such a Mul
    before every linear layer (NNCF: 24 in ViT-S), where it keeps the next Q out of the norm's kernel.
    """
    taken = value_names(model)
    for node in list(model.graph):
        if not is_op(node, "LayerNormalization") or len(node.inputs) < 2:
            continue
        reader = only_reader(node.outputs[0])
        factor = _factor(node, reader) if reader is not None else None
        if reader is None or factor is None or any(out.uses() for out in node.outputs[1:]):
            continue
        tensors = [constant(value) for value in node.inputs[1:3]]
        given = [value for value in node.inputs[1:3] if value is not None]
        if any(tensor is None for tensor in tensors[: len(given)]):
            continue
        if not bypass(model.graph, reader, node.outputs[0]):
            continue
        for index, tensor in enumerate(tensors, start=1):
            if tensor is not None:
                made = (tensor.numpy().astype(np.float64) * factor).astype(tensor.dtype.numpy())
                name = f"{tensor.name or node.name}_scaled"
                node.replace_input_with(index, new_constant(model.graph, name, made, taken))
    return []


def _factor(norm: ir.Node, reader: ir.Node) -> np.ndarray | None:
    """What ``reader`` multiplies by, float64 [channels] or [1]; None where it is not such a Mul or Div."""
    parts = split_constant(reader) if is_op(reader, "Mul", "Div") else None
    shape, scale = norm.outputs[0].shape, norm.inputs[1]
    if parts is None or shape is None or scale is None or scale.shape is None:
        return None
    if integer_attribute(norm, "axis", -1) not in (-1, len(shape) - 1) or len(scale.shape) != 1:
        return None
    if is_op(reader, "Div") and parts[0] is not reader.inputs[0]:
        return None
    tensor = constant(parts[1])
    sizes = tuple(tensor.shape.numpy()) if tensor is not None else ()
    if tensor is None or len(sizes) > len(shape) or any(size != 1 for size in sizes[:-1]):
        return None
    if sizes and sizes[-1] not in (1, scale.shape[0]):
        return None
    factor = tensor.numpy().astype(np.float64).reshape(-1)
    if is_op(reader, "Div"):
        return 1 / factor if factor.all() else None
    return factor
