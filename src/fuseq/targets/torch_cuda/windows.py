"""Convolutions, pools, padding and resizing as PyTorch calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F

from fuseq.errors import TargetError
from fuseq.targets.torch_cuda.emitter import Emitter, Operand, shape_of

Operands = Sequence[Operand | None]


def _ints(node: ir.Node, name: str, default: list[int]) -> list[int]:
    return [int(value) for value in node.attributes.get_ints(name, None) or default]


def _refuse(node: ir.Node, what: str) -> TargetError:
    return TargetError(f"torch:cuda: {node.op_type} {node.name!r} {what}, which is not supported.")


def _padding(
    emit: Emitter, node: ir.Node, data: torch.fx.Node, value: float
) -> tuple[torch.fx.Node, list[int]]:
    """Padding that PyTorch takes as an argument: symmetric; other padding is written out before."""
    if node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise _refuse(node, "has auto_pad")
    rank = len(shape_of(data)) - 2
    pads = _ints(node, "pads", [0] * 2 * rank)
    before, after = pads[:rank], pads[rank:]
    if before == after:
        return data, before
    flat = [size for pair in list(zip(before, after, strict=True))[::-1] for size in pair]
    return emit.call(F.pad, data, flat, value=value), [0] * rank


def _conv(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data, weight = operands[0], operands[1]
    assert data is not None and weight is not None
    padded, padding = _padding(emit, node, emit.tensor(data), 0.0)
    rank = len(padding)
    bias = operands[2] if len(operands) > 2 else None
    if _are_patches(node, shape_of(padded), shape_of(weight), padding):
        return emit.call(
            patches, padded, emit.tensor(weight), None if bias is None else emit.tensor(bias)
        )
    functions: dict[int, Callable[..., Any]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    return emit.call(
        functions[rank],
        padded,
        emit.tensor(weight),
        None if bias is None else emit.tensor(bias),
        _ints(node, "strides", [1] * rank),
        padding,
        _ints(node, "dilations", [1] * rank),
        node.attributes.get_int("group", 1),
    )


def _are_patches(
    node: ir.Node, data: tuple[int, ...], weight: tuple[int, ...], padding: list[int]
) -> bool:
    """Windows that do not overlap and cover a picture: the stem of vision transformers."""
    window = list(weight[2:])
    return (
        len(window) == 2
        and max(window) > 1
        and _ints(node, "strides", [1, 1]) == window
        and not any(padding)
        and _ints(node, "dilations", [1, 1]) == [1, 1]
        and node.attributes.get_int("group", 1) == 1
        and all(size % step == 0 for size, step in zip(data[2:], window, strict=True))
    )


def patches(data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Convolution of windows that do not overlap, as one matrix product.

    cuDNN's kernel for such a stem of a ViT-L/14 takes 1.0 ms of a batch of 128 on an H200, behind a
    change of layout of 0.3 ms; the product takes a tenth.

    Args:
        data: [B, C, H, W], H and W multiples of the window.
        weight: [O, C, h, w].
        bias: [O] or None.

    Returns:
        [B, O, H / h, W / w], channels last in memory.
    """
    batch, channels, height, width = data.shape
    out, _, h, w = weight.shape
    cut = data.reshape(batch, channels, height // h, h, width // w, w).permute(0, 2, 4, 1, 3, 5)
    rows = cut.reshape(batch * (height // h) * (width // w), channels * h * w)
    product = F.linear(rows, weight.reshape(out, -1), bias)
    return product.reshape(batch, height // h, width // w, out).permute(0, 3, 1, 2)


def _conv_transpose(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data, weight = operands[0], operands[1]
    assert data is not None and weight is not None
    source = emit.tensor(data)
    rank = len(shape_of(source)) - 2
    pads = _ints(node, "pads", [0] * 2 * rank)
    if pads[:rank] != pads[rank:] or "output_shape" in node.attributes:
        raise _refuse(node, "has uneven pads or an output_shape")
    bias = operands[2] if len(operands) > 2 else None
    functions: dict[int, Callable[..., Any]] = {
        1: F.conv_transpose1d,
        2: F.conv_transpose2d,
        3: F.conv_transpose3d,
    }
    return emit.call(
        functions[rank],
        source,
        emit.tensor(weight),
        None if bias is None else emit.tensor(bias),
        _ints(node, "strides", [1] * rank),
        pads[:rank],
        _ints(node, "output_padding", [0] * rank),
        node.attributes.get_int("group", 1),
        _ints(node, "dilations", [1] * rank),
    )


def _max_pool(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    assert operands[0] is not None
    data, padding = _padding(emit, node, emit.tensor(operands[0]), float("-inf"))
    rank = len(padding)
    functions: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
    return emit.call(
        functions[rank],
        data,
        _ints(node, "kernel_shape", []),
        _ints(node, "strides", [1] * rank),
        padding,
        _ints(node, "dilations", [1] * rank),
        bool(node.attributes.get_int("ceil_mode", 0)),
    )


def _average_pool(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    assert operands[0] is not None
    counted = bool(node.attributes.get_int("count_include_pad", 0))
    rank = len(shape_of(operands[0])) - 2
    pads = _ints(node, "pads", [0] * 2 * rank)
    if pads[:rank] != pads[rank:] and not counted:
        raise _refuse(node, "has uneven pads that it does not count")
    data, padding = _padding(emit, node, emit.tensor(operands[0]), 0.0)
    functions: dict[int, Callable[..., Any]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
    return emit.call(
        functions[rank],
        data,
        _ints(node, "kernel_shape", []),
        _ints(node, "strides", [1] * rank),
        padding,
        bool(node.attributes.get_int("ceil_mode", 0)),
        counted,
    )


def _global_pool(function: Callable[..., torch.Tensor]) -> Callable[..., torch.fx.Node]:
    def write(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
        assert operands[0] is not None
        data = emit.tensor(operands[0])
        return emit.call(function, data, list(range(2, len(shape_of(data)))), True)

    return write


def _pad(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    data, pads = operands[0], operands[1]
    assert data is not None
    source = emit.tensor(data)
    given = operands[3] if len(operands) > 3 else None
    if not isinstance(pads, np.ndarray) or not (given is None or isinstance(given, np.ndarray)):
        raise _refuse(node, "takes pads or axes that depend on data")
    rank = len(shape_of(source))
    axes = range(rank) if given is None else [int(axis) % rank for axis in given.reshape(-1)]
    sizes = [int(size) for size in pads.reshape(-1)]
    before = dict(zip(axes, sizes[: len(sizes) // 2], strict=True))
    after = dict(zip(axes, sizes[len(sizes) // 2 :], strict=True))
    flat = [
        side.get(axis, 0) for axis in range(rank)[::-1] for side in (before, after)
    ]  # PyTorch counts from the last axis
    mode = node.attributes.get_string("mode", "constant") or "constant"
    if mode != "constant":
        while len(flat) > 2 and flat[-2:] == [0, 0]:
            flat = flat[:-2]  # PyTorch wants pads of the last axes alone
        names = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
        return emit.call(F.pad, source, flat, names[mode])
    value = operands[2] if len(operands) > 2 else None
    filled = 0.0 if value is None else emit.scalar_or_tensor(np.asarray(value).reshape(()))
    return emit.call(F.pad, source, flat, value=filled)


def _resize(emit: Emitter, node: ir.Node, operands: Operands) -> torch.fx.Node:
    assert operands[0] is not None
    data = emit.tensor(operands[0])
    shape = shape_of(data)
    scales = operands[2] if len(operands) > 2 else None
    sizes = operands[3] if len(operands) > 3 else None
    if isinstance(sizes, np.ndarray) and sizes.size:
        wanted = [int(size) for size in sizes.reshape(-1)]
    elif isinstance(scales, np.ndarray) and scales.size:
        wanted = [int(size * scale) for size, scale in zip(shape, scales.tolist(), strict=True)]
    else:
        raise _refuse(node, "takes a size that depends on data")
    mode = node.attributes.get_string("mode", "nearest") or "nearest"
    how = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    modes: dict[tuple[str, str], dict[str, Any]] = {
        ("nearest", "asymmetric"): {"mode": "nearest"},
        ("nearest", "half_pixel"): {"mode": "nearest-exact"},
        ("linear", "half_pixel"): {"mode": "bilinear", "align_corners": False},
        ("linear", "pytorch_half_pixel"): {"mode": "bilinear", "align_corners": False},
        ("linear", "align_corners"): {"mode": "bilinear", "align_corners": True},
    }
    known = modes.get((mode, how or ""))
    if known is None or wanted[:2] != list(shape[:2]) or len(shape) != 4:
        raise _refuse(node, f"in mode {mode}, {how} over {len(shape)} axes")
    return emit.call(F.interpolate, data, size=wanted[2:], **known)


WINDOWS: dict[str, Callable[..., torch.fx.Node]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_pool(torch.mean),
    "GlobalMaxPool": _global_pool(torch.amax),
    "Pad": _pad,
    "Resize": _resize,
}
"""Operators that slide or stretch windows, by their ONNX name."""
