"""Read a graph with Q/DQ: which layers have weights, what they read, and how it is quantized.

The graph is read as its tool wrote it, not in canonical form, so that findings name the user's nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from fuseq.passes.matching import constant, is_op
from fuseq.passes.quantizers import is_dequantize, is_quantize
from fuseq.placement.patterns import copies_values

_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)
_WEIGHT_STEPS = ("Transpose", "Reshape", "Identity", "Cast", "Squeeze", "Unsqueeze", "Flatten")
_MAX_STEPS = 8


@dataclasses.dataclass(frozen=True)
class Layer:
    """A node with a constant weight, quantized or not.

    Attributes:
        node: Conv, ConvTranspose, Gemm or MatMul.
        data: What it reads besides the weight, behind its pair if there is one.
        stored: The initializer that the weight comes from.
        steps: Nodes between ``stored`` and the layer, in graph order.
        groups: Groups of a convolution, else 1.
    """

    node: ir.Node
    data: ir.Value
    stored: ir.Value
    steps: tuple[ir.Node, ...]
    groups: int

    @property
    def is_conv(self) -> bool:
        """Conv or ConvTranspose."""
        return self.node.op_type in ("Conv", "ConvTranspose")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stored weight."""
        tensor = constant(self.stored)
        return tuple(int(size) for size in tensor.shape.numpy()) if tensor is not None else ()

    @property
    def read_shape(self) -> tuple[int, ...]:
        """Shape of the weight as the layer reads it, behind its steps."""
        value = self.node.inputs[1]
        dims = list(value.shape) if value is not None and value.shape is not None else []
        sizes = [dim for dim in dims if isinstance(dim, int)]
        return tuple(sizes) if sizes and len(sizes) == len(dims) else self.shape

    @property
    def is_depthwise(self) -> bool:
        """One input channel a group, and more than one group."""
        shape = self.read_shape
        return self.is_conv and self.groups > 1 and len(shape) > 1 and shape[1] == 1

    @property
    def channel_axis(self) -> int:
        """Output-channel axis of the weight as the layer reads it (patterns.Weighted)."""
        if self.node.op_type == "Conv":
            return 0
        if self.node.op_type == "ConvTranspose":
            return 1
        if self.node.op_type == "Gemm":
            return 0 if self.node.attributes.get_int("transB", 0) else 1
        return max(len(self.read_shape) - 1, 0)

    @property
    def data_dequantize(self) -> ir.Node | None:
        """The DequantizeLinear behind which it reads its data."""
        return dequantizer(self.data)

    @property
    def weight_dequantize(self) -> ir.Node | None:
        """The DequantizeLinear of its weight."""
        return next((step for step in self.steps if is_dequantize(step)), None)

    @property
    def weight_quantize(self) -> ir.Node | None:
        """The QuantizeLinear that still stands on a float weight."""
        return next((step for step in self.steps if is_quantize(step)), None)

    @property
    def is_quantized(self) -> bool:
        """Both data and weight are quantized."""
        return self.data_dequantize is not None and self.weight_dequantize is not None


def layers_of(graph: ir.Graph) -> tuple[Layer, ...]:
    """Every node with a constant weight, in graph order."""
    return tuple(found for node in graph if (found := layer_at(node)) is not None)


def layer_at(node: ir.Node) -> Layer | None:
    """Read one node; None when it has no constant weight of at least two dimensions."""
    if not is_op(node, "Conv", "ConvTranspose", "Gemm", "MatMul") or len(node.inputs) < 2:
        return None
    data, weight = node.inputs[0], node.inputs[1]
    if data is None or weight is None or weight_source(data) is not None:
        return None
    found = weight_source(weight)
    if found is None:
        return None
    stored, steps = found
    tensor = constant(stored)
    if tensor is None or len(tensor.shape) < 2:
        return None
    groups = node.attributes.get_int("group", 1) if node.op_type.startswith("Conv") else 1
    return Layer(node, data, stored, steps, groups)


def weight_source(value: ir.Value) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """The initializer that ``value`` is made of through Q, DQ and moves, and the nodes between."""
    steps: list[ir.Node] = []
    current: ir.Value | None = value
    while current is not None and len(steps) <= _MAX_STEPS:
        if constant(current) is not None:
            return current, tuple(reversed(steps))
        producer = current.producer()
        if producer is None or not (
            is_quantize(producer) or is_dequantize(producer) or producer.op_type in _WEIGHT_STEPS
        ):
            return None
        steps.append(producer)
        current = producer.inputs[0] if producer.inputs else None
    return None


def dequantizer(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear of an activation that makes ``value``; None for weights and biases."""
    producer = value.producer() if value is not None else None
    if producer is None or not is_dequantize(producer):
        return None
    source = producer.inputs[0]
    return None if source is None or weight_source(source) is not None else producer


def is_dequantized(value: ir.Value | None) -> bool:
    """A DequantizeLinear makes it, directly or before operators that only move values."""
    for _ in range(_MAX_STEPS):
        if value is None or dequantizer(value) is not None:
            return value is not None
        producer = value.producer()
        if producer is None or not copies_values(producer) or producer.op_type == "Concat":
            return False
        value = producer.inputs[0] if producer.inputs else None
    return False


def quantizer(dequantize: ir.Node) -> ir.Node | None:
    """The QuantizeLinear before a DequantizeLinear."""
    source = dequantize.inputs[0]
    producer = source.producer() if source is not None else None
    return producer if is_quantize(producer) else None


def float_source(value: ir.Value) -> ir.Value:
    """The float tensor behind the pair that makes ``value``; ``value`` itself when there is none."""
    dequantize = dequantizer(value)
    quantize = quantizer(dequantize) if dequantize is not None else None
    source = quantize.inputs[0] if quantize is not None else None
    return source if source is not None else value


def activation_pairs(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Every QuantizeLinear of an activation with each DequantizeLinear that reads it."""
    for node in graph:
        if is_dequantize(node):
            quantize = quantizer(node)
            if quantize is not None and dequantizer(node.outputs[0]) is not None:
                yield quantize, node


def readers(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Nodes that read ``value`` and the input's number, through pass-through operators too."""
    found: list[tuple[ir.Node, int]] = []
    stack, seen = [value], {value}
    while stack:
        for use in stack.pop().uses():
            found.append((use.node, use.idx))
            if copies_values(use.node) and use.idx == 0:
                for out in use.node.outputs:
                    if out not in seen:
                        seen.add(out)
                        stack.append(out)
    return found


def is_float_tensor(value: ir.Value | None) -> bool:
    """A float tensor that is computed or fed at run time."""
    return value is not None and value.dtype in _FLOATS and constant(value) is None


def quantized_formats(graph: ir.Graph) -> set[str]:
    """``int8`` or ``fp8`` for what the file's dequantizers read; other types by their ONNX name."""
    words = {ir.DataType.INT8: "int8", ir.DataType.UINT8: "int8", ir.DataType.FLOAT8E4M3FN: "fp8"}
    found = set()
    for node in graph:
        source = node.inputs[0] if is_dequantize(node) else None
        if source is not None and source.dtype is not None and source.dtype != ir.DataType.INT32:
            found.add(words.get(source.dtype, source.dtype.name.lower()))
    return found
