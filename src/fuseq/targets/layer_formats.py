"""Full TensorRT's words for types and memory layouts: what a tensor's text says about dtype and bytes.

Numbered cases of the text, all seen in files of TensorRT 8, 10 and 11:
1. ``Format/Datatype: "Thirty-two wide channel vectorized row major Int8 format"``: type and layout
   in one sentence; channels are padded to the vector width.
2. ``Format/Datatype: "Channel major FP16 format where channel % 8 == 0"``: channels padded to 8.
3. ``Format/Datatype: "Half"``: kernels of the ML compiler back end; type alone, no padding.
4. ``Datatype: "Half", Format: "Row major linear FP16 format (kLINEAR)", Strides: [...]``:
   TensorRT 11 tells them apart; strides, in elements, show the padding.
Source of the layouts: TensorRT documentation, "Data Format Descriptions"
(https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/advanced.html), and of the
split: "Migrating IEngineInspector Usage from TensorRT 10.x to 11.x".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_DTYPE_WORDS: tuple[tuple[str, str], ...] = (
    # Longer words first: "bfloat16" contains "float", "uint8" contains "int8".
    ("bfloat16", "bf16"),
    ("bf16", "bf16"),
    ("fp16", "fp16"),
    ("half", "fp16"),
    ("fp8", "fp8"),
    ("e4m3", "fp8"),
    ("fp4", "fp4"),
    ("double", "fp64"),
    ("fp32", "fp32"),
    ("float", "fp32"),
    ("uint8", "uint8"),
    ("int8", "int8"),
    ("int4", "int4"),
    ("int16", "int16"),
    ("int32", "int32"),
    ("int64", "int64"),
    ("bool", "bool"),
)

_DTYPE_BITS = {
    "fp64": 64,
    "int64": 64,
    "fp32": 32,
    "int32": 32,
    "fp16": 16,
    "bf16": 16,
    "int16": 16,
    "fp8": 8,
    "int8": 8,
    "uint8": 8,
    "bool": 8,
    "fp4": 4,
    "int4": 4,
}

_VECTOR_WORDS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32}
_VECTORIZED = re.compile(r"^(two|four|eight|sixteen|thirty-two) wide channel vectorized")
_CHANNEL_MULTIPLE = re.compile(r"channel % (\d+) == 0")
_CHANNEL_EXACT = re.compile(r"channel == (\d+)")
_LARGEST_VECTOR = 32
_COLUMN_MULTIPLE = re.compile(r"column stride % (\d+) == 0")


def dtype_of(text: str) -> str:
    """The dtype word of ``TensorInfo`` for TensorRT's ``text``; "" when it names none."""
    lower = text.lower()
    for word, dtype in _DTYPE_WORDS:
        if word in lower:
            return dtype
    return ""


def bits_of(dtype: str) -> int:
    """Storage bits of one value; 0 for a word that is not known."""
    return _DTYPE_BITS.get(dtype, 0)


def stored_bytes(
    shape: Sequence[int], dtype: str, layout: str, strides: Sequence[int] | None = None
) -> int:
    """Bytes that a kernel moves for a tensor, padding included.

    Args:
        shape: Logical shape, ``(N, C, H, W)`` for images; a dimension of -1 counts as 1.
        dtype: Word of ``TensorInfo``.
        layout: The layout's text, as in the module's cases; "" is row major without padding.
        strides: Elements from one index to the next on each axis, when the file gives them.
    """
    sizes = [max(size, 1) for size in shape]
    if strides is not None and not _VECTORIZED.search(layout.lower()):
        elements = _strided_elements(sizes, strides)
    else:
        elements = math.prod(_padded(sizes, layout.lower()))
    return math.ceil(elements * bits_of(dtype) / 8)


def _strided_elements(sizes: list[int], strides: Sequence[int]) -> int:
    """Elements moved: the innermost axis padded as the next stride says, other gaps not counted.

    A gap of a whole vector or more is a slice of a wider tensor, of which only the slice moves.
    """
    elements = math.prod(sizes)
    if len(sizes) != len(strides) or 1 not in strides:
        return elements
    inner = sizes[list(strides).index(1)]
    outer = min((stride for stride in strides if stride > 1), default=inner)
    return elements // inner * outer if 0 < outer - inner < _LARGEST_VECTOR else elements


def _padded(sizes: list[int], layout: str) -> list[int]:
    """Round channels (axis 1) and columns (the last axis) up to what the layout asks for."""
    padded = list(sizes)
    if len(padded) >= 3:
        padded[1] = _round_up(padded[1], _channel_multiple(layout))
        column = _COLUMN_MULTIPLE.search(layout)
        if column:
            padded[-1] = _round_up(padded[-1], int(column.group(1)))
    return padded


def _channel_multiple(layout: str) -> int:
    vector = _VECTORIZED.search(layout)
    if vector:
        return _VECTOR_WORDS[vector.group(1)]
    multiple = _CHANNEL_MULTIPLE.search(layout) or _CHANNEL_EXACT.search(layout)
    return max(int(multiple.group(1)), 1) if multiple else 1


def _round_up(value: int, multiple: int) -> int:
    return -(-value // max(multiple, 1)) * max(multiple, 1)
