"""One scale per attention: torch exports sqrt(scale) on Q and again on K."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import is_op, made_by, only_reader, scalar, split_constant
from fuseq.passes.names import value_names
from fuseq.passes.splice import bypass, new_constant


def merge_attention_scales(model: ir.Model) -> list[str]:
    """Rewrite ``MatMul(Q * a, K * b)`` into ``MatMul(Q * (a * b), K)`` for scalar constants.

    The product behind the MatMul is the same but for rounding. The scale stays before the product,
    so that FP16 scores do not overflow. TensorRT-RTX 1.7.1, SM89, FP16: MiniLM 78 to 66 kernels,
    CLIP text 160 to 136, because the Mul on K kept its transpose from fusing.
    """
    taken = value_names(model)
    for product in list(model.graph):
        if not is_op(product, "MatMul"):
            continue
        on_q, on_k = (_scaling(product.inputs[0]), _scaling(product.inputs[1]))
        if on_q is None or on_k is None:
            continue
        (q_mul, q_index, q_scale), (k_mul, _, k_scale) = on_q, on_k
        before = q_mul.inputs[q_index]
        dtype = before.const_value.dtype if before and before.const_value else None
        if dtype is None or product.inputs[1] is None:
            continue
        merged = np.asarray(_snapped(q_scale * k_scale)).astype(dtype.numpy())
        unscaled = split_constant(k_mul)
        if unscaled is None or not bypass(model.graph, k_mul, unscaled[0]):
            continue
        q_mul.replace_input_with(q_index, new_constant(model.graph, "scale", merged, taken))
    return []


def _snapped(scale: float) -> float:
    """Undo the rounding of two square roots: 0.12499999 is 1 / sqrt(64), the head's width."""
    if scale <= 0:
        return scale
    width = round(scale**-2)
    exact = width**-0.5 if width else scale
    return exact if abs(scale / exact - 1) < 1e-6 else scale


def _scaling(value: ir.Value | None) -> tuple[ir.Node, int, float] | None:
    """Return (Mul, index of its scalar, the scalar) where only one node reads the Mul."""
    mul = made_by(value, "Mul")
    if mul is None or value is None or only_reader(value) is None or split_constant(mul) is None:
        return None
    for index in (0, 1):
        found = scalar(mul.inputs[index])
        if found is not None:
            return mul, index, found
    return None
