"""ONNX operators as PyTorch calls, one function for each kind.

Semantics: ONNX operator specification, https://onnx.ai/onnx/operators/. Shapes are static, so axes,
sizes and shape arithmetic are Python numbers by the time an operator is written.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F

from fuseq.errors import TargetError
from fuseq.targets.torch_cuda.emitter import Emitter, Operand, dtype_of, shape_of
from fuseq.targets.torch_cuda.windows import WINDOWS

Operands = Sequence[Operand | None]
Write = Callable[[Emitter, ir.Node, Operands], "torch.fx.Node | list[torch.fx.Node]"]

TORCH_TYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT8: torch.int8,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.BOOL: torch.bool,
    ir.DataType.FLOAT8E4M3FN: torch.float8_e4m3fn,
}


def numbers(node: ir.Node, operand: Operand | None) -> list[int]:
    """A constant list of integers: axes, sizes, a shape.

    Raises:
        TargetError: It depends on data.
    """
    if not isinstance(operand, np.ndarray):
        raise TargetError(
            f"torch:cuda: node {node.name!r} ({node.op_type}) takes a size that depends on data; "
            "shapes must follow from the inputs' shapes."
        )
    return [int(value) for value in operand.reshape(-1)]


def axes_of(node: ir.Node, operands: Operands, slot: int = 1) -> list[int] | None:
    """Axes from the input of newer opsets or the attribute of older ones; None where neither is."""
    if len(operands) > slot and operands[slot] is not None:
        return numbers(node, operands[slot])
    found = node.attributes.get_ints("axes", None)
    return None if found is None else [int(axis) for axis in found]


def unary(function: Callable[..., Any]) -> Write:
    """An operator of one tensor without attributes."""

    def write(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
        return emit.call(function, emit.tensor(_first(operands)))

    return write


def binary(function: Callable[..., Any]) -> Write:
    """An operator of two tensors with broadcasting; ONNX wants equal types, so scalars are exact."""

    def write(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
        a, b = operands[0], operands[1]
        assert a is not None and b is not None
        left = emit.tensor(a)
        return emit.call(function, left, emit.scalar_or_tensor(b))

    return write


def variadic(function: Callable[..., Any]) -> Write:
    """Sum, Max, Min over any number of tensors."""

    def write(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
        result = emit.tensor(_first(operands))
        for other in operands[1:]:
            assert other is not None
            result = emit.call(function, result, emit.tensor(other))
        return result

    return write


def reduction(function: Callable[..., Any]) -> Write:
    """Reduce over axes; none given means all, unless ``noop_with_empty_axes``."""

    def write(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
        data = emit.tensor(_first(operands))
        axes = axes_of(node, operands)
        if not axes:
            if node.attributes.get_int("noop_with_empty_axes", 0):
                return data
            axes = list(range(len(shape_of(data))))
        keep = bool(node.attributes.get_int("keepdims", 1))
        return emit.call(function, data, axes, keep)

    return write


def _first(operands: Operands) -> Operand:
    first = operands[0]
    assert first is not None
    return first


def _divide(a: torch.Tensor, b: torch.Tensor | float) -> torch.Tensor:
    if a.is_floating_point():
        return torch.div(a, b)
    return torch.div(a, b, rounding_mode="trunc")  # integers: towards zero, as in C


def _norm_l2(data: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(data, 2, axes, keep)
    return norm


def _matmul(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    a, b = operands[0], operands[1]
    assert a is not None and b is not None
    return emit.call(torch.matmul, emit.tensor(a), emit.tensor(b))


def _gemm(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    a, b = operands[0], operands[1]
    assert a is not None and b is not None
    left, right = emit.tensor(a), emit.tensor(b)
    if node.attributes.get_int("transA", 0):
        left = emit.call(torch.transpose, left, 0, 1)
    if node.attributes.get_int("transB", 0):
        right = emit.call(torch.transpose, right, 0, 1)
    result = emit.call(torch.matmul, left, right)
    alpha = node.attributes.get_float("alpha", 1.0)
    if alpha != 1.0:
        result = emit.call(torch.mul, result, alpha)
    bias = operands[2] if len(operands) > 2 else None
    if bias is None:
        return result
    added = emit.tensor(bias)
    beta = node.attributes.get_float("beta", 1.0)
    if beta != 1.0:
        added = emit.call(torch.mul, added, beta)
    return emit.call(torch.add, result, added)


def _layer_norm(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data, weight = emit.tensor(_first(operands)), operands[1]
    assert weight is not None
    axis = node.attributes.get_int("axis", -1)
    shape = shape_of(data)
    normalized = list(shape[axis % len(shape) :])
    bias = operands[2] if len(operands) > 2 else None
    return emit.call(
        F.layer_norm,
        data,
        normalized,
        emit.tensor(weight),
        None if bias is None else emit.tensor(bias),
        node.attributes.get_float("epsilon", 1e-5),
    )


def _softmax(function: Callable[..., Any]) -> Write:
    def write(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
        return emit.call(
            function, emit.tensor(_first(operands)), node.attributes.get_int("axis", -1)
        )

    return write


def _gelu(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    how = node.attributes.get_string("approximate", "none")
    return emit.call(F.gelu, emit.tensor(_first(operands)), approximate=how)


def _clip(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    low, high = (operands[slot] if len(operands) > slot else None for slot in (1, 2))
    bounds = [None if bound is None else emit.scalar_or_tensor(bound) for bound in (low, high)]
    if bounds == [None, None]:
        return emit.tensor(_first(operands))
    return emit.call(torch.clamp, emit.tensor(_first(operands)), *bounds)


def _leaky_relu(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    slope = node.attributes.get_float("alpha", 0.01)
    return emit.call(F.leaky_relu, emit.tensor(_first(operands)), slope)


def _hard_sigmoid(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    alpha = node.attributes.get_float("alpha", 0.2)
    beta = node.attributes.get_float("beta", 0.5)
    scaled = emit.call(torch.mul, emit.tensor(_first(operands)), alpha)
    return emit.call(torch.clamp, emit.call(torch.add, scaled, beta), 0.0, 1.0)


def _reshape(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data = emit.tensor(_first(operands))
    sizes = numbers(node, operands[1])
    if not node.attributes.get_int("allowzero", 0):
        sizes = [shape_of(data)[i] if size == 0 else size for i, size in enumerate(sizes)]
    return emit.call(torch.reshape, data, sizes)


def _transpose(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data = emit.tensor(_first(operands))
    order = node.attributes.get_ints("perm", None) or range(len(shape_of(data)))[::-1]
    return emit.call(torch.permute, data, [int(axis) for axis in order])


def _flatten(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data = emit.tensor(_first(operands))
    axis = node.attributes.get_int("axis", 1) % (len(shape_of(data)) + 1)
    return emit.call(torch.reshape, data, [math.prod(shape_of(data)[:axis]), -1])


def _concat(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    parts = [emit.tensor(part) for part in operands if part is not None]
    return emit.call(torch.cat, parts, node.attributes.get_int("axis", 0))


def _split(emit: Emitter, node: ir.Node, operands: Operands) -> list[torch.fx.Node]:
    data = emit.tensor(_first(operands))
    axis = node.attributes.get_int("axis", 0)
    if len(operands) > 1 and operands[1] is not None:
        sizes = numbers(node, operands[1])
    else:
        length, parts = shape_of(data)[axis], len(node.outputs)
        chunk = -(-length // parts)
        sizes = [min(chunk, length - chunk * part) for part in range(parts)]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return [
        emit.call(torch.narrow, data, axis, start, size)
        for start, size in zip(starts, sizes, strict=True)
    ]


def _slice(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data = emit.tensor(_first(operands))
    starts, ends = numbers(node, operands[1]), numbers(node, operands[2])
    axes = axes_of(node, operands, 3) or list(range(len(starts)))
    given = operands[4] if len(operands) > 4 else None
    steps = [1] * len(starts) if given is None else numbers(node, given)
    where = [slice(None)] * len(shape_of(data))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        where[axis] = slice(start, end, step)
    if all(step > 0 for step in steps):
        return emit.call(operator.getitem, data, tuple(where))
    picks = [
        torch.arange(size)[:].numpy()[cut] for size, cut in zip(shape_of(data), where, strict=True)
    ]
    for axis, pick in enumerate(picks):  # PyTorch has no negative steps
        data = emit.call(torch.index_select, data, axis, emit.tensor(np.ascontiguousarray(pick)))
    return data


def _gather(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data, indices = emit.tensor(_first(operands)), operands[1]
    assert indices is not None
    axis = node.attributes.get_int("axis", 0) % len(shape_of(data))
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return emit.call(torch.select, data, axis, int(indices))
    where: tuple[object, ...] = (slice(None),) * axis + (emit.tensor(indices),)
    return emit.call(operator.getitem, data, where)


def _gather_elements(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    indices = operands[1]
    assert indices is not None
    axis = node.attributes.get_int("axis", 0)
    return emit.call(torch.gather, emit.tensor(_first(operands)), axis, emit.tensor(indices))


def _gather_nd(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    indices = operands[1]
    assert indices is not None
    if node.attributes.get_int("batch_dims", 0):
        raise TargetError(f"torch:cuda: GatherND {node.name!r} with batch_dims is not supported.")
    where = emit.tensor(indices)
    parts = tuple(emit.call(torch.select, where, -1, index) for index in range(shape_of(where)[-1]))
    return emit.call(operator.getitem, emit.tensor(_first(operands)), parts)


def _unsqueeze(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data = emit.tensor(_first(operands))
    axes = axes_of(node, operands) or []
    rank = len(shape_of(data)) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        data = emit.call(torch.unsqueeze, data, axis)
    return data


def _squeeze(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data = emit.tensor(_first(operands))
    axes = axes_of(node, operands)
    if axes is None:
        axes = [axis for axis, size in enumerate(shape_of(data)) if size == 1]
    return emit.call(torch.squeeze, data, axes) if axes else data


def _expand(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data = emit.tensor(_first(operands))
    shape = np.broadcast_shapes(shape_of(data), tuple(numbers(node, operands[1])))
    return emit.call(torch.broadcast_to, data, [int(size) for size in shape])


def _tile(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    return emit.call(torch.tile, emit.tensor(_first(operands)), numbers(node, operands[1]))


def _where(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    condition, a, b = operands
    assert condition is not None and a is not None and b is not None
    return emit.call(torch.where, emit.tensor(condition), emit.tensor(a), emit.tensor(b))


def _cast(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    to = ir.DataType(node.attributes.get_int("to", 0) or 0)
    if to not in TORCH_TYPES:
        raise TargetError(f"torch:cuda: Cast {node.name!r} to {to.name} is not supported.")
    data = emit.tensor(_first(operands))
    return (
        data
        if dtype_of(data) == TORCH_TYPES[to]
        else emit.call(torch.Tensor.to, data, TORCH_TYPES[to])
    )


def _extreme(function: Callable[..., Any]) -> Write:
    def write(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
        axis = node.attributes.get_int("axis", 0)
        keep = bool(node.attributes.get_int("keepdims", 1))
        data = emit.tensor(_first(operands))
        if dtype_of(data) == torch.bool:
            data = emit.call(torch.Tensor.to, data, torch.uint8)
        return emit.call(function, data, axis, keep)

    return write


def _trilu(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    diagonal = numbers(node, operands[1])[0] if len(operands) > 1 and operands[1] is not None else 0
    function = torch.triu if node.attributes.get_int("upper", 1) else torch.tril
    return emit.call(function, emit.tensor(_first(operands)), diagonal)


def _cumsum(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    return emit.call(torch.cumsum, emit.tensor(_first(operands)), numbers(node, operands[1])[0])


def _identity(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    return emit.tensor(_first(operands))


_Functions = dict[str, Callable[..., Any]]

_UNARY: _Functions = {
    "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Erf": torch.erf,
    "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt, "Abs": torch.abs,
    "Neg": torch.neg, "Reciprocal": torch.reciprocal, "Floor": torch.floor,
    "Ceil": torch.ceil, "Round": torch.round, "Sin": torch.sin, "Cos": torch.cos,
    "Not": torch.logical_not, "IsNaN": torch.isnan, "IsInf": torch.isinf,
    "HardSwish": F.hardswish, "Softplus": F.softplus, "Mish": F.mish, "Sign": torch.sign,
}  # fmt: skip
_BINARY: _Functions = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": _divide,
    "Pow": torch.pow, "Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt,
    "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le, "And": torch.logical_and,
    "Or": torch.logical_or, "Mod": torch.remainder,
}  # fmt: skip
_VARIADIC: _Functions = {"Sum": torch.add, "Max": torch.maximum, "Min": torch.minimum}
_REDUCTIONS: _Functions = {
    "ReduceMean": torch.mean, "ReduceSum": torch.sum, "ReduceMax": torch.amax,
    "ReduceMin": torch.amin, "ReduceL2": _norm_l2,
}  # fmt: skip

OPERATORS: dict[str, Write] = {
    **{name: unary(function) for name, function in _UNARY.items()},
    **{name: binary(function) for name, function in _BINARY.items()},
    **{name: variadic(function) for name, function in _VARIADIC.items()},
    **{name: reduction(function) for name, function in _REDUCTIONS.items()},
    "MatMul": _matmul, "Gemm": _gemm, "LayerNormalization": _layer_norm,
    "Softmax": _softmax(torch.softmax), "LogSoftmax": _softmax(torch.log_softmax), "Gelu": _gelu,
    "Clip": _clip, "LeakyRelu": _leaky_relu, "HardSigmoid": _hard_sigmoid, "Reshape": _reshape,
    "Transpose": _transpose, "Flatten": _flatten, "Concat": _concat, "Split": _split,
    "Slice": _slice, "Gather": _gather, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Expand": _expand,
    "Tile": _tile, "Where": _where, "Cast": _cast, "ArgMax": _extreme(torch.argmax),
    "ArgMin": _extreme(torch.argmin), "Trilu": _trilu, "CumSum": _cumsum, "Identity": _identity,
    **WINDOWS,
}  # fmt: skip
"""Every operator that this target writes, by its ONNX name."""
