"""Reads the ``Layers:`` block that the TensorRT-RTX builder logs at detailed verbosity.

One line a kernel (seen with TensorRT-RTX 1.7.1)::

    Name: N, LayerType: T, Inputs: [ {...}, {...}], Constants: [...], Outputs: [...],
    TacticName: X, StreamId: 0, Metadata: [ONNX Layer: a][ONNX Layer: b]

(nothing behind ``Metadata:`` where the builder added the kernel itself, to change a layout)
with each tensor ``{ Name: n, Dimensions: [8,64], Strides: [64,1], StrideOrder: [1,0],
Datatype: Half, Format: (Linear) Row major linear format }``.
"""

from __future__ import annotations

import dataclasses
import math
import re

_LAYER = re.compile(
    r"^Name: (?P<name>.*), LayerType: (?P<type>[^,]*), Inputs: \[(?P<inputs>.*)\], "
    r"Constants: \[(?P<constants>.*)\], Outputs: \[(?P<outputs>.*)\], "
    r"TacticName: (?P<tactic>.*), StreamId: -?\d+, Metadata: ?(?P<metadata>.*)$"
)
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?), Dimensions: \[(?P<dims>[^\]]*)\], Strides: \[(?P<strides>[^\]]*)\], "
    r"StrideOrder: \[[^\]]*\], Datatype: (?P<dtype>[^,]*), Format: "
)
_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")

DTYPES = {
    "Float": ("fp32", 32),
    "Half": ("fp16", 16),
    "BFloat16": ("bf16", 16),
    "BF16": ("bf16", 16),
    "FP8": ("fp8", 8),
    "Int8": ("int8", 8),
    "UInt8": ("uint8", 8),
    "Int32": ("int32", 32),
    "Int64": ("int64", 64),
    "Bool": ("bool", 8),
    "Int4": ("int4", 4),
    "FP4": ("fp4", 4),
}
"""The builder's word for a type: ours, and its bits."""


_LARGEST_VECTOR = 32
"""Channels are padded to at most 32 (NHWC32 and NC/32HW32, TensorRT documentation, "I/O Formats")."""


@dataclasses.dataclass(frozen=True)
class LayerTensor:
    """A tensor of one line; ``nbytes`` counts the stored elements, padding included."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Layer:
    """One line of the block."""

    name: str
    type: str
    inputs: tuple[LayerTensor, ...]
    constants: tuple[LayerTensor, ...]
    outputs: tuple[LayerTensor, ...]
    nodes: tuple[str, ...]


def parse_layers(text: str) -> list[Layer]:
    """Parse a whole block; lines of another form (I/O tensors, metadata) are passed over."""
    layers = []
    for line in text.split("\n"):
        match = _LAYER.match(line.removeprefix("Layers:").strip())
        if match:
            layers.append(
                Layer(
                    name=match["name"],
                    type=match["type"],
                    inputs=_tensors(match["inputs"]),
                    constants=_tensors(match["constants"]),
                    outputs=_tensors(match["outputs"]),
                    nodes=tuple(_NODE.findall(match["metadata"])),
                )
            )
    return layers


def _tensors(text: str) -> tuple[LayerTensor, ...]:
    found = []
    for match in _TENSOR.finditer(text):
        shape = _numbers(match["dims"])
        dtype, bits = DTYPES.get(match["dtype"], (match["dtype"].lower(), 32))
        elements = _stored_elements(shape, _numbers(match["strides"]))
        found.append(LayerTensor(match["name"], shape, dtype, math.ceil(elements * bits / 8)))
    return tuple(found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _stored_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements that a kernel moves for a tensor, channel padding included.

    Padding shows in the stride over the innermost axis: it is the axis rounded up to a vector. A
    gap of a whole vector or more is a slice of a wider tensor instead, of which only the slice moves.
    """
    elements = math.prod(shape)
    if len(shape) != len(strides):
        return elements
    inner = next((axis for axis, stride in enumerate(strides) if stride == 1), None)
    outer = min((stride for stride in strides if stride > 1), default=None)
    if inner is None or outer is None or not shape[inner]:
        return elements
    gap = outer - shape[inner]
    if 0 < gap < _LARGEST_VECTOR:
        return elements // shape[inner] * outer
    return elements
