"""What a layer with weights multiplies them by: rows of its input, as a matrix product sees them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir

from fuseq.placement.patterns import Weighted, weighted

MAX_ROWS = 8192
"""Rows of a batch that are looked at; of more, this many are drawn with a fixed seed. Neighbouring
positions of an image are so alike that the others add little."""

_MAX_ELEMENTS = 1 << 24
"""64 MiB of float32: fewer rows are drawn where each is wide."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A Conv, Gemm or MatMul as ``groups`` products ``rows [R, K] x weights [O, K]^T``."""

    match: Weighted

    @property
    def width(self) -> int:
        """K, the length of a row: inputs of a group times kernel positions."""
        return int(self.weights().shape[2])

    def weights(self, array: np.ndarray | None = None) -> np.ndarray:
        """The weight, or an array of its shape, as [groups, O, K], in float64."""
        tensor = self.match.weight.const_value
        assert tensor is not None  # weighted() matches constants only
        values = np.asarray(tensor.numpy() if array is None else array, dtype=np.float64)
        if self.match.is_conv:
            return values.reshape(self.match.groups, values.shape[0] // self.match.groups, -1)
        return (values if self.match.channel_axis == 0 else values.T)[None]

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """The reverse of :meth:`weights`, in float32: [groups, O, K] in the weight's own shape."""
        tensor = self.match.weight.const_value
        assert tensor is not None
        shape = tuple(tensor.shape.numpy())
        if self.match.is_conv:
            array = rows.reshape(shape)
        else:
            array = rows[0] if self.match.channel_axis == 0 else rows[0].T
        return np.ascontiguousarray(array, dtype=np.float32)

    def rows(self, data: np.ndarray) -> np.ndarray:
        """Rows of one batch, float32 [R, groups, K]; ``data`` is the node's first input."""
        if not self.match.is_conv:
            flat = data.reshape(-1, data.shape[-1])
            return np.asarray(flat[_drawn(len(flat), flat.shape[1])], dtype=np.float32)[:, None]
        return self._windows(data)

    def _windows(self, data: np.ndarray) -> np.ndarray:
        """The windows that a convolution multiplies (im2col), of drawn positions."""
        node, groups = self.match.node, self.match.groups
        tensor = self.match.weight.const_value
        assert tensor is not None
        kernel = tuple(int(size) for size in tensor.shape.numpy()[2:])
        rank = len(kernel)
        strides = node.attributes.get_ints("strides", [1] * rank) or [1] * rank
        dilations = node.attributes.get_ints("dilations", [1] * rank) or [1] * rank
        pads = node.attributes.get_ints("pads", [0] * 2 * rank) or [0] * 2 * rank
        padded = np.pad(data, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        axes = tuple(range(2, 2 + rank))
        view = np.lib.stride_tricks.sliding_window_view(padded, tuple(spans), axis=axes)
        steps = [slice(None), slice(None), *(slice(None, None, stride) for stride in strides)]
        holes = [slice(None, None, dilation) for dilation in dilations]
        view = view[tuple(steps + holes)]
        places = (view.shape[0], *view.shape[2 : 2 + rank])
        drawn = _drawn(int(np.prod(places)), data.shape[1] * int(np.prod(kernel)))
        sample, *position = np.unravel_index(drawn, places)
        where: tuple[Any, ...] = (sample, slice(None), *position)
        windows = view[where]  # [R, C, *kernel]
        return np.asarray(windows, dtype=np.float32).reshape(len(drawn), groups, -1)


def layer_of(node: ir.Node) -> Layer | str:
    """The layer of a node, or why it cannot be written as a product of rows.

    1. A Conv without ``auto_pad``; grouped and depthwise too.
    2. A MatMul or Gemm with a weight of two axes; a Gemm with ``transA``, ``alpha`` or ``beta`` is refused.
    """
    match = weighted(node)
    if match is None or match.weight.const_value is None:
        return "the weight is not constant"
    if node.op_type == "Conv":
        if (node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET") != "NOTSET":
            return "the padding is automatic"
        return Layer(match)
    if node.op_type == "ConvTranspose":
        return "the layer is a transposed convolution"
    if len(match.weight.const_value.shape) != 2:
        return "the weight has more than two axes"
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    if node.attributes.get_int("transA", 0) or factors != [1.0, 1.0]:
        return "the layer is a Gemm with transA, alpha or beta"
    return Layer(match)


def _drawn(count: int, width: int) -> np.ndarray:
    """Indices of the rows to look at, ascending."""
    wanted = max(1, min(MAX_ROWS, _MAX_ELEMENTS // max(width, 1)))
    if count <= wanted:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, wanted, replace=False))
