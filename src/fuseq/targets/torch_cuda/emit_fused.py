"""Writes a fusion as one call of our kernels, or says why the plain operators must do."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F

from fuseq.targets.torch_cuda import kernels as _operators_are_declared  # noqa: F401
from fuseq.targets.torch_cuda.emitter import Emitter, Operand, dtype_of, shape_of, tensor_of
from fuseq.targets.torch_cuda.fusions import Attention, Fusion, Linear
from fuseq.targets.torch_cuda.held import Held, float_of, stored_type
from fuseq.targets.torch_cuda.operators import OPERATORS

Values = dict[ir.Value, Operand | Held]

LINEAR_MULTIPLE = 16
"""Rows of 8-bit values must be a multiple of 16 bytes long for the tensor memory accelerator (CUDA
C++ Programming Guide, "Tensor Memory Access", table of alignment requirements)."""

HEAD_SIZES = (16, 32, 64, 128)
"""Sizes of a head that the attention kernel is written for: its blocks are powers of two."""

_MASKED = -1e4


def write(emit: Emitter, fusion: Fusion, values: Values) -> torch.fx.Node | str:
    """Write ``fusion`` and its result into ``values``.

    Returns:
        The call, or the reason why no kernel of ours takes it; nothing is written then.
    """
    if isinstance(fusion, Linear):
        return _linear(emit, fusion, values)
    return _attention(emit, fusion, values)


def _linear(emit: Emitter, fusion: Linear, values: Values) -> torch.fx.Node | str:
    data, weight = values[_some(fusion.product.inputs[0])], values[_some(fusion.product.inputs[1])]
    if not isinstance(data, Held) or data.is_per_channel:
        return "its input is not quantized with one scale"
    if not isinstance(weight, Held) or not isinstance(weight.stored, np.ndarray):
        return "its weight is not a quantized constant"
    is_transposed = bool(fusion.product.attributes.get_int("transB", 0))
    channel = 0 if is_transposed else 1
    if weight.stored.ndim != 2 or (weight.is_per_channel and weight.axis % 2 != channel):  # type: ignore[operator]
        return "its weight's scales are not for each output channel"
    rows = weight.stored if is_transposed else weight.stored.T
    size, width = rows.shape
    if size % LINEAR_MULTIPLE or width % LINEAR_MULTIPLE:
        return f"{width} x {size} is not a multiple of {LINEAR_MULTIPLE}"
    stored = emit.tensor(data.stored)
    if dtype_of(stored) != dtype_of(weight.stored):
        return "input and weight have different formats"
    leading = list(shape_of(stored)[:-1])
    scale = np.broadcast_to(
        np.float32(data.number) * weight.scale.astype(np.float32).reshape(-1),
        (size,),
    ).copy()
    residual = None if fusion.residual is None else values[fusion.residual]
    if isinstance(residual, Held):
        residual = float_of(emit, residual)
    out_scale, dtype = _output_of(fusion, values, tensor_of(data.scale.reshape(-1)[:0]).dtype)
    result = emit.call(
        torch.ops.fuseq.linear.default,
        emit.call(torch.reshape, stored, [-1, width]),
        emit.buffer(tensor_of(np.ascontiguousarray(rows))),
        emit.buffer(torch.from_numpy(scale)),
        None if fusion.bias is None else emit.tensor(_plain(values[fusion.bias])),
        None if residual is None else emit.call(torch.reshape, emit.tensor(residual), [-1, size]),
        fusion.activation,
        fusion.slope,
        out_scale,
        dtype,
    )
    values[fusion.nodes[-1].outputs[0]] = emit.call(torch.reshape, result, [*leading, size])
    return result


def _attention(emit: Emitter, fusion: Attention, values: Values) -> torch.fx.Node | str:
    parts = [values[fusion.query], values[fusion.key], values[fusion.value]]
    is_held = [isinstance(part, Held) and not part.is_per_channel for part in parts]
    if not all(is_held):
        parts = [float_of(emit, part) if isinstance(part, Held) else part for part in parts]
    stored = [emit.tensor(part.stored if isinstance(part, Held) else part) for part in parts]
    query, key, value = stored[0], emit.call(torch.transpose, stored[1], -1, -2), stored[2]
    shapes = [shape_of(part) for part in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes) or shapes[1] != shapes[2]:
        return "its tensors are not [batch, heads, tokens, size]"
    if shapes[0][:2] != shapes[1][:2] or shapes[0][-1] != shapes[1][-1]:
        return "query and key have different heads"
    is_fp8 = all(is_held) and dtype_of(query) == torch.float8_e4m3fn
    if all(is_held) and not is_fp8:
        return "there is no kernel for attention in this format"
    if shapes[0][-1] not in HEAD_SIZES:
        return f"heads of size {shapes[0][-1]} have no kernel; {HEAD_SIZES} have"
    scales = [part.number if isinstance(part, Held) else 1.0 for part in parts]
    mask, is_causal = _mask_of(emit, fusion, values, shapes)
    if not is_fp8 and fusion.quantize is None:
        result = emit.call(
            F.scaled_dot_product_attention, query, key, value, mask,
            is_causal=is_causal, scale=fusion.scale,
        )  # fmt: skip
        values[fusion.result] = result
        return result
    first = parts[0]
    kind = (
        tensor_of(first.scale.reshape(-1)[:0]).dtype if isinstance(first, Held) else dtype_of(query)
    )
    out_scale, dtype = _output_of(fusion, values, kind)
    result = emit.call(
        torch.ops.fuseq.attention.default, query, key, value, mask,
        fusion.scale * scales[0] * scales[1], scales[2], is_causal, out_scale, dtype,
    )  # fmt: skip
    _finish(emit, fusion, values, result)
    return result


def _output_of(fusion: Fusion, values: Values, kind: torch.dtype) -> tuple[float, torch.dtype]:
    """Scale and type of the result; ``kind`` is the float type of an unquantized one."""
    if fusion.quantize is None:
        return 1.0, kind
    scale = values[_some(fusion.quantize.inputs[1])]
    assert isinstance(scale, np.ndarray)
    return float(scale.reshape(-1)[0]), stored_type(fusion.quantize)


def _finish(emit: Emitter, fusion: Attention, values: Values, result: torch.fx.Node) -> None:
    values[fusion.result] = result
    if fusion.quantize is None:
        return
    for view in fusion.views:
        operands = [_plain(values[_some(value)]) for value in view.inputs]
        written = OPERATORS[view.op_type](emit, view, operands)
        assert isinstance(written, torch.fx.Node)
        result = values[view.outputs[0]] = written
    values[fusion.quantize.outputs[0]] = result


def _mask_of(
    emit: Emitter, fusion: Attention, values: Values, shapes: list[tuple[int, ...]]
) -> tuple[torch.fx.Node | None, bool]:
    """The added mask, broadcast to [batch, heads, queries, keys], and whether it is just causal."""
    if fusion.mask is None:
        return None, False
    mask = values[fusion.mask]
    if isinstance(mask, np.ndarray) and _is_causal(mask, shapes[0][2], shapes[1][2]):
        return None, True
    whole = emit.tensor(float_of(emit, mask) if isinstance(mask, Held) else mask)
    target = [*shapes[0][:3], shapes[1][2]]
    return emit.call(torch.broadcast_to, whole, target), False


def _is_causal(mask: np.ndarray, queries: int, keys: int) -> bool:
    if queries != keys or mask.shape[-2:] != (queries, keys) or mask.size != queries * keys:
        return False
    square = mask.reshape(queries, keys).astype(np.float32)
    seen = np.tril(np.ones((queries, keys), dtype=bool))
    return bool(np.all(square[seen] == 0) and np.all(square[~seen] <= _MASKED))


def _plain(value: Operand | Held) -> Operand:
    assert not isinstance(value, Held)
    return value


def _some(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value
