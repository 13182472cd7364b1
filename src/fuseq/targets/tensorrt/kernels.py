"""Step 10: layers become kernels, with the bytes, products and constants that the cost model needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from fuseq.targets.base import Kernel, KernelType, TensorInfo
from fuseq.targets.tensorrt.assign import Assignment, Reformat, shape_of
from fuseq.targets.tensorrt.builder import DP4A_CHANNELS
from fuseq.targets.tensorrt.layers import Layer, Network
from fuseq.targets.tensorrt.operators import CONVOLUTIONS, PRODUCTS
from fuseq.targets.tensorrt.prepare import origin
from fuseq.targets.tensorrt.quantization import DTYPE_WORDS, is_dequantize
from fuseq.targets.tensorrt.storage import Storage

_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4, "fp4": 4}
_INTEGERS = frozenset({"int32", "int64", "bool"})
_PARAMETERS = frozenset({"QuantizeLinear", "DequantizeLinear", "BatchNormalization"})
"""Their constants end up in the weights and the bias of the layer that they are fused into."""


def kernels_of(
    network: Network,
    layers: list[Layer],
    storages: Assignment,
    homes: Mapping[ir.Value, ir.Value],
    lines: Mapping[str, str],
) -> tuple[Kernel, ...]:
    """Kernels in launch order.

    Args:
        network: The fused network.
        layers: Its layers in launch order.
        storages: Types, layouts and conversions.
        homes: The joined tensor that a value lies in, where Concat costs no copy.
        lines: Source line of the user's model by node name, where the file carries it.
    """
    position = {node: number for number, node in enumerate(network.graph)}
    made: list[Kernel] = []
    for value in network.graph.inputs:
        made.extend(_reformat(each, homes) for each in storages.reformats.get(value, []))
    for layer in layers:
        made.append(_kernel(network, layer, storages, homes, lines, position))
        for value in network.outputs(layer):
            made.extend(_reformat(each, homes) for each in storages.reformats.get(value, []))
    return tuple(made)


def _kernel(
    network: Network,
    layer: Layer,
    storages: Assignment,
    homes: Mapping[ir.Value, ir.Value],
    lines: Mapping[str, str],
    position: Mapping[ir.Node, int],
) -> Kernel:
    inputs = tuple(_inputs(network, layer, storages, homes))
    outputs = tuple(_info(v, storages.made[v], _name(v, homes)) for v in network.outputs(layer))
    nodes = _origins(network, layer, position)
    operands = _compute_dtype(network, layer, inputs)
    return Kernel(
        name=_layer_name(layer, nodes),
        type=layer.type,
        compiler_type=layer.word,
        inputs=inputs,
        outputs=outputs,
        weights_bytes=_weights_bytes(network, layer, operands),
        flops=sum(_flops(node) for node in layer.nodes if node.op_type in PRODUCTS),
        compute_dtype=operands,
        nodes=nodes,
        source_lines=tuple(dict.fromkeys(lines[node] for node in nodes if node in lines)),
    )


def _inputs(
    network: Network, layer: Layer, storages: Assignment, homes: Mapping[ir.Value, ir.Value]
) -> Iterator[TensorInfo]:
    """What it reads: through a slice, the slice alone; a tensor read twice moves once.

    Attention sees heads, ``(batch, heads, rows, head size)``, however the tensor is stored.
    """
    seen: set[ir.Value] = set()
    for view in network.runtime_inputs(layer):
        root = network.root(view)
        storage = storages.read.get((layer, root), storages.made.get(root))
        if storage is None:
            continue
        is_slice = math.prod(shape_of(view)) < math.prod(shape_of(root))
        part = view if is_slice or layer.type is KernelType.ATTENTION else root
        name = _name(root, homes)
        if storage != storages.made.get(root):
            name = f"{name} ({storage.dtype}, {storage.layout})"
        info = _info(part, storage, name)
        if part not in seen:
            seen.add(part)
            yield info


def _info(value: ir.Value, storage: Storage, name: str) -> TensorInfo:
    shape = shape_of(value)
    return TensorInfo(name, shape, storage.dtype, storage.nbytes(shape))


def _name(value: ir.Value, homes: Mapping[ir.Value, ir.Value]) -> str:
    while value in homes:
        value = homes[value]
    return value.name or ""


def _reformat(each: Reformat, homes: Mapping[ir.Value, ir.Value]) -> Kernel:
    name = _name(each.value, homes)
    same_type = each.before.dtype == each.after.dtype
    after = each.reader if each.is_output else f"{name} ({each.after.dtype}, {each.after.layout})"
    side = "Output" if each.is_output else "Input"
    return Kernel(
        name=f"Reformatting CopyNode for {side} Tensor 0 to {each.reader}",
        type=KernelType.MOVE if same_type else KernelType.CAST,
        compiler_type="Reformat",
        inputs=(_info(each.value, each.before, name),),
        outputs=(_info(each.value, each.after, after),),
    )


def _origins(network: Network, layer: Layer, position: Mapping[ir.Node, int]) -> tuple[str, ...]:
    """Nodes of the user's model, in graph order, with those that make the weights."""
    found = dict.fromkeys(layer.nodes)
    stack = list(layer.nodes)
    while stack:
        for value in stack.pop().inputs:
            producer = value.producer() if value in network.constants and value else None
            if producer is not None and producer not in found:
                found[producer] = None
                stack.append(producer)
    ordered = sorted(found, key=lambda node: position[node])
    return tuple(dict.fromkeys(origin(node) for node in ordered))


def _layer_name(layer: Layer, nodes: tuple[str, ...]) -> str:
    joined = " + ".join(nodes)
    return f"PWN({joined})" if layer.word == "PointWiseV2" else joined


def _compute_dtype(network: Network, layer: Layer, inputs: tuple[TensorInfo, ...]) -> str:
    if layer.type not in (KernelType.CONVOLUTION, KernelType.GEMM, KernelType.ATTENTION):
        return ""
    if not inputs:
        return layer.operands
    dtype = layer.operands or inputs[0].dtype
    shape = inputs[0].shape
    if layer.type is KernelType.CONVOLUTION and len(shape) > 2 and shape[1] <= DP4A_CHANNELS:
        if dtype == "int8" and layer.word != "ConvActPool":
            return "int8x4"
        return dtype
    return "tf32" if dtype == "fp32" and network.builder.has_tf32 else dtype


def _weights_bytes(network: Network, layer: Layer, operands: str) -> int:
    """Weights in the product's type, biases of low-precision products in FP32, the rest as stored."""
    total = 0
    for node in layer.nodes:
        if node.op_type in _PARAMETERS:
            continue
        for index, value in enumerate(node.inputs):
            if value is None or value not in network.constants:
                continue
            dtype = DTYPE_WORDS.get(value.dtype, "") if value.dtype is not None else ""
            if dtype in _INTEGERS:
                continue  # axes, bounds and shapes: known at build time
            if node.op_type in PRODUCTS:
                is_bias = index > 1
                dtype = _weight_dtype(value, operands) if not is_bias else _bias_dtype(operands)
            total += math.ceil(math.prod(shape_of(value)) * _BITS.get(dtype, 32) / 8)
    return total


def _weight_dtype(value: ir.Value, operands: str) -> str:
    """INT4 weights of a float GEMM stay INT4; all others have the product's type."""
    producer = value.producer()
    if is_dequantize(producer) and producer is not None and producer.inputs[0] is not None:
        stored = producer.inputs[0].dtype
        word = DTYPE_WORDS.get(stored, "") if stored is not None else ""
        if word in ("int4", "fp4"):
            return word
    return {"int8x4": "int8", "tf32": "fp32"}.get(operands, operands)


def _bias_dtype(operands: str) -> str:
    return "fp16" if operands in ("fp16", "bf16") else "fp32"


def _flops(node: ir.Node) -> int:
    """Multiply and add counted apart.

    Convolution: every output value is a dot product over ``C / groups x kernel``, a transposed one
    visits every input value instead. GEMM: every output value over the inner dimension.
    """
    data, weight, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if data is None or weight is None:
        return 0
    if node.op_type in CONVOLUTIONS:
        dense = shape_of(data) if node.op_type == "ConvTranspose" else shape_of(out)
        return 2 * math.prod(dense) * math.prod(shape_of(weight)[1:])
    shape = shape_of(data)
    if not shape:
        return 0
    inner = shape[0] if node.attributes.get_int("transA", 0) else shape[-1]
    return 2 * math.prod(shape_of(out)) * inner
