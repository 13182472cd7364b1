"""Read per-channel affine maps ``y = x * scale + shift`` off BatchNormalization, Mul, Div, Add, Sub."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import (
    array,
    constant,
    float_attribute,
    integer_attribute,
    split_constant,
)

_BATCH_NORM_EPSILON = 1e-5
"""Default of the attribute, ONNX BatchNormalization-15."""


@dataclasses.dataclass(frozen=True)
class Affine:
    """``y[:, c] = x[:, c] * scale[c] + shift[c]``; both have shape [channels] or [1], float64."""

    scale: np.ndarray
    shift: np.ndarray


def affine_of(node: ir.Node, channels: int, axis_from_end: int) -> Affine | None:
    """Return what ``node`` does to its computed input, or None.

    Args:
        node: Any node.
        channels: Size of the channel axis.
        axis_from_end: Place of the channel axis counted from the end: 1 is the last axis.

    1. BatchNormalization outside training mode: ``scale = gamma / sqrt(var + eps)`` and
       ``shift = beta - mean * scale`` (https://onnx.ai/onnx/operators/onnx__BatchNormalization.html);
       its channel axis is 1, so the caller asks only where that is its channel axis too.
    2. Mul, Div, Add, Sub with a constant that varies along the channel axis alone.
    """
    if node.domain != "":
        return None
    if node.op_type == "BatchNormalization":
        return _batch_norm(node)
    if node.op_type not in ("Mul", "Div", "Add", "Sub"):
        return None
    parts = split_constant(node)
    if parts is None or (node.op_type in ("Div", "Sub") and parts[1] is node.inputs[0]):
        return None
    vector = _per_channel(parts[1], channels, axis_from_end)
    if vector is None:
        return None
    one, zero = np.ones(1), np.zeros(1)
    if node.op_type in ("Add", "Sub"):
        return Affine(one, vector if node.op_type == "Add" else -vector)
    if node.op_type == "Div" and not vector.all():
        return None
    return Affine(vector if node.op_type == "Mul" else 1 / vector, zero)


def _batch_norm(node: ir.Node) -> Affine | None:
    if integer_attribute(node, "training_mode", 0) or any(v.uses() for v in node.outputs[1:]):
        return None
    tensors = [constant(value) for value in node.inputs[1:5]]
    if len(tensors) != 4:
        return None
    wide = [tensor.numpy().astype(np.float64) for tensor in tensors if tensor is not None]
    if len(wide) != 4:
        return None
    gamma, beta, mean, variance = wide
    variance = variance + float_attribute(node, "epsilon", _BATCH_NORM_EPSILON)
    if not (variance > 0).all():
        return None
    scale = gamma / np.sqrt(variance)
    return Affine(scale, beta - mean * scale)


def _per_channel(value: ir.Value, channels: int, axis_from_end: int) -> np.ndarray | None:
    found = array(value)
    if found is None or found.size not in (1, channels) or found.ndim > axis_from_end + 1:
        return None
    along = found.ndim >= axis_from_end and found.shape[found.ndim - axis_from_end] == channels
    if found.size > 1 and not along:
        return None
    wide = found.reshape(-1).astype(np.float64)
    return wide if np.isfinite(wide).all() else None
