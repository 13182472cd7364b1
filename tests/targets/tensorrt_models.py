"""Networks for the tests of the TensorRT fusion model, with Q/DQ pairs where a test wants them.

Weights are zeros: a fusion model looks at shapes, types and edges. The ONNX text of :func:`net` has
three macros: ``y = Pair<0.5>(x)`` is QuantizeLinear and DequantizeLinear with scale 0.5, and
``w = Weight<8, 4, 3, 3>()`` an INT8 initializer of that shape behind DequantizeLinear with one scale
a channel on axis 0; ``w = Zeros<128, 512>()`` is an initializer of float zeros.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper, parser

from fuseq.targets.base import Engine, Kernel, KernelType, ShapeProfile
from fuseq.targets.gpus import gpu_for
from fuseq.targets.tensorrt import TensorRtSimulated
from fuseq.targets.tensorrt.builder import Typing

_PAIR = re.compile(r"(\w+) = Pair<([\d.]+)> ?\((\w+)\)")
_WEIGHT = re.compile(r"(\w+) = Weight<([\d, ]+)> ?\(\)")
_ZEROS = re.compile(r"(\w+) = Zeros<([\d, ]+)> ?\(\)")

Edge = tuple[str, str, int]
"""Tensor name, name of the node that reads it, number of the input."""


def net(signature: str, body: str, dtype: str = "int8", opset: int = 21) -> ir.Model:
    """Parse ``net (inputs) => (outputs) { body }`` with the macros of this module."""
    constants: dict[str, np.ndarray] = {}
    zero_type = np.int8 if dtype == "int8" else None

    def pair(match: re.Match[str]) -> str:
        out, scale, source = match.groups()
        constants[f"{out}_scale"] = np.array(float(scale), np.float32)
        if zero_type is None:
            return (
                f"{out}_q = QuantizeLinear <output_dtype = 17> ({source}, {out}_scale)\n"
                f"{out} = DequantizeLinear ({out}_q, {out}_scale)"
            )
        constants[f"{out}_zero"] = np.zeros((), zero_type)
        return (
            f"{out}_q = QuantizeLinear ({source}, {out}_scale, {out}_zero)\n"
            f"{out} = DequantizeLinear ({out}_q, {out}_scale, {out}_zero)"
        )

    def weight(match: re.Match[str]) -> str:
        out, sizes = match.groups()
        shape = tuple(int(size) for size in sizes.split(","))
        constants[f"{out}_stored"] = np.zeros(shape, np.int8)
        constants[f"{out}_scale"] = np.full(shape[0], 0.01, np.float32)
        return f"{out} = DequantizeLinear <axis = 0> ({out}_stored, {out}_scale)"

    def zeros(match: re.Match[str]) -> str:
        shape = tuple(int(size) for size in match.group(2).split(","))
        constants[match.group(1)] = np.zeros(shape, np.float32)
        return ""

    expanded = _ZEROS.sub(zeros, _WEIGHT.sub(weight, _PAIR.sub(pair, body)))
    header = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    model = parser.parse_model(f"{header}\nnet {signature} {{\n{expanded}\n}}")
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    if dtype == "fp8":
        _weights_to_fp8(model)
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{node.output[0]}_{number}"
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def _weights_to_fp8(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name.endswith("_stored"):
            shape = tuple(tensor.dims)
            count = int(np.prod(shape))
            raw = helper.make_tensor(
                tensor.name, onnx.TensorProto.FLOAT8E4M3FN, shape, bytes(count), raw=True
            )
            tensor.CopyFrom(raw)


def simulate(model: ir.Model, capability: int = 80, typing: Typing = "strong") -> Engine:
    """Compile with the fusion model; all input shapes of ``model`` are static."""
    shapes = {
        value.name or "": tuple(int(size) for size in value.shape.numpy())
        for value in model.graph.inputs
        if value.shape is not None
    }
    target = TensorRtSimulated(capability, gpu_for(capability), typing)
    return target.compile(model, ShapeProfile(shapes))


def by_node(engine: Engine, node: str) -> Kernel:
    """The one kernel that ``node`` runs in."""
    found = [kernel for kernel in engine.kernels if node in kernel.nodes]
    assert len(found) == 1, (node, [kernel.name for kernel in engine.kernels])
    return found[0]


def by_operator(engine: Engine, operator: str) -> list[Kernel]:
    """Kernels that run a node whose name begins with ``operator``, as :func:`net` names nodes."""
    return [
        kernel
        for kernel in engine.kernels
        if any(node.startswith(f"{operator}_") for node in kernel.nodes)
    ]


def types(engine: Engine) -> list[str]:
    """Kernel types in launch order."""
    return [kernel.type.value for kernel in engine.kernels]


def counts(engine: Engine, adds: frozenset[str] = frozenset()) -> dict[str, int]:
    """Kernels by type, convolutions by type of result too, and convolutions that fuse an Add."""
    found: dict[str, int] = {}
    for kernel in engine.kernels:
        word = kernel.type.value
        if kernel.type is KernelType.CONVOLUTION:
            word = f"convolution {kernel.outputs[0].dtype}"
            if adds & set(kernel.nodes):
                found["fused adds"] = found.get("fused adds", 0) + 1
        found[word] = found.get(word, 0) + 1
    return found


class Builder:
    """Writes a float network node by node; the only state is the graph and the last value."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.value = ir.Value(
            name="input", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)
        )
        self.graph = ir.Graph([self.value], [], nodes=[], opset_imports={"": 20}, name="net")
        self.count = 0

    def node(
        self, operator: str, *inputs: ir.Value, name: str = "", **attributes: int | list[int]
    ) -> ir.Value:
        """Append a node; the result is the new last value."""
        self.count += 1
        made = [
            ir.AttrInt64(key, value) if isinstance(value, int) else ir.AttrInt64s(key, value)
            for key, value in attributes.items()
        ]
        new = ir.Node("", operator, inputs, made, name=name or f"{operator}_{self.count}")
        new.outputs[0].name = f"{new.name}_out"
        self.graph.append(new)
        self.value = new.outputs[0]
        return self.value

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """An initializer."""
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )  # fmt: skip
        self.graph.register_initializer(value)
        return value

    def conv(
        self, source: ir.Value, name: str, channels: tuple[int, int], size: int, stride: int = 1,
        groups: int = 1,
    ) -> ir.Value:  # fmt: skip
        """A convolution with bias; ``channels`` are those read by a group and those written."""
        weight = self.constant(f"{name}.w", np.zeros((channels[1], channels[0], size, size), "f4"))
        bias = self.constant(f"{name}.b", np.zeros(channels[1], "f4"))
        pad = size // 2
        return self.node(
            "Conv", source, weight, bias, name=name, kernel_shape=[size, size],
            strides=[stride, stride], pads=[pad] * 4, group=groups,
        )  # fmt: skip

    def linear(self, source: ir.Value, inputs: int, outputs: int) -> ir.Value:
        """Flatten and Gemm with bias, as torchvision's classifiers export."""
        flat = self.node("Flatten", source, axis=1)
        weight = self.constant("fc.w", np.zeros((outputs, inputs), "f4"))
        bias = self.constant("fc.b", np.zeros(outputs, "f4"))
        return self.node("Gemm", flat, weight, bias, name="fc", transB=1)

    def finish(self) -> ir.Model:
        """The model; its output is the last value."""
        self.value.type = ir.TensorType(ir.DataType.FLOAT)
        self.graph.outputs.append(self.value)
        return ir.Model(self.graph, ir_version=10)


def resnet18(batch: int = 32) -> ir.Model:
    """torchvision's ResNet-18, BatchNormalization folded: 20 convolutions, 8 additions, ``fc``."""
    made = Builder((batch, 3, 224, 224))
    value = made.node("Relu", made.conv(made.value, "conv1", (3, 64), 7, 2))
    value = made.node(
        "MaxPool", value, name="maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    )
    width = 64
    for stage, channels in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            prefix, identity = f"layer{stage}.{block}", value
            value = made.node(
                "Relu", made.conv(value, f"{prefix}.conv1", (width, channels), 3, stride)
            )
            value = made.conv(value, f"{prefix}.conv2", (channels, channels), 3)
            if stride > 1:
                identity = made.conv(identity, f"{prefix}.down", (width, channels), 1, stride)
            value = made.node("Relu", made.node("Add", value, identity, name=f"{prefix}.add"))
            width = channels
    value = made.node("GlobalAveragePool", value, name="gap")
    made.linear(value, 512, 1000)
    return made.finish()


def mobilenet_v2(batch: int = 1) -> ir.Model:
    """torchvision's MobileNetV2, BatchNormalization folded: 52 convolutions, 10 additions, ``fc``."""
    made = Builder((batch, 3, 224, 224))
    low, high = made.constant("low", np.zeros((), "f4")), made.constant("six", np.float32(6))

    def clipped(value: ir.Value) -> ir.Value:
        return made.node("Clip", value, low, high)

    value = clipped(made.conv(made.value, "features.0", (3, 32), 3, 2))
    width, number = 32, 0
    for expand, channels, repeats, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for repeat in range(repeats):
            number += 1
            prefix, identity, hidden = f"features.{number}", value, width * expand
            step = stride if repeat == 0 else 1
            if expand > 1:
                value = clipped(made.conv(value, f"{prefix}.expand", (width, hidden), 1))
            value = clipped(made.conv(value, f"{prefix}.depth", (1, hidden), 3, step, hidden))
            value = made.conv(value, f"{prefix}.project", (hidden, channels), 1)
            if step == 1 and width == channels:
                value = made.node("Add", value, identity, name=f"{prefix}.add")
            width = channels
    value = clipped(made.conv(value, "features.18", (320, 1280), 1))
    made.linear(made.node("GlobalAveragePool", value, name="gap"), 1280, 1000)
    return made.finish()


def weighted_edges(model: ir.Model) -> list[Edge]:
    """Data edges of every Conv and Gemm."""
    return [
        (node.inputs[0].name or "", node.name or "", 0)
        for node in model.graph
        if node.op_type in ("Conv", "Gemm") and node.inputs[0] is not None
    ]


def identity_edges(model: ir.Model) -> list[Edge]:
    """The second input of every Add: the shortcut, as :func:`resnet18` writes it."""
    return [
        (node.inputs[1].name or "", node.name or "", 1)
        for node in model.graph
        if node.op_type == "Add" and node.inputs[1] is not None
    ]


def with_pairs(model: ir.Model, edges: list[Edge]) -> ir.Model:
    """Put a Q/DQ pair of its own on each edge and on each Conv and Gemm weight, as
    pytorch-quantization exports them; pairs on one tensor have one scale."""
    copy = model.clone()
    graph = copy.graph
    nodes = {node.name: node for node in graph}
    for number, (_, reader, index) in enumerate(edges):
        node = nodes[reader]
        value = node.inputs[index]
        assert value is not None
        scale = _scalar(graph, f"pair_{number}_scale", np.array(0.1, np.float32))
        zero = _scalar(graph, f"pair_{number}_zero", np.zeros((), np.int8))
        _insert(graph, node, index, value, scale, zero, f"pair_{number}", [])
    for node in [n for n in graph if n.op_type in ("Conv", "Gemm")]:
        weight = node.inputs[1]
        assert weight is not None and weight.shape is not None
        channels = int(weight.shape.numpy()[0])
        scale = _scalar(graph, f"{weight.name}_scale", np.full(channels, 0.01, np.float32))
        zero = _scalar(graph, f"{weight.name}_zero", np.zeros(channels, np.int8))
        name = f"{weight.name}_pair"
        _insert(graph, node, 1, weight, scale, zero, name, [ir.AttrInt64("axis", 0)])
    return copy


def _scalar(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _insert(
    graph: ir.Graph,
    node: ir.Node,
    index: int,
    value: ir.Value,
    scale: ir.Value,
    zero: ir.Value,
    name: str,
    attributes: list[ir.Attr],
) -> None:
    quantize = ir.Node("", "QuantizeLinear", [value, scale, zero], attributes, name=f"{name}_q")
    result = quantize.outputs[0]
    dequantize = ir.Node(
        "", "DequantizeLinear", [result, scale, zero], attributes, name=f"{name}_dq"
    )
    result.name, dequantize.outputs[0].name = f"{name}_stored", f"{name}_real"
    graph.insert_before(node, [quantize, dequantize])
    node.replace_input_with(index, dequantize.outputs[0])
