"""Step 4: pooling in low precision.

1. Average pooling does not commute with Q, so it is quantized by fusing DQ before and Q behind it:
   "non-weighted layers with INT8 inputs also require INT8 outputs" (TensorRT documentation,
   "Explicit Quantization", recommendation 5). With one of them alone it runs in float.
2. Max pooling commutes; step 2 has moved Q and DQ, so it reads and writes what is stored.
3. A low-precision convolution of an image and the max pooling behind it are one kernel, ConvActPool
   ("Convolution and Pooling: both layers must have the same precision", Layer Fusion Catalog). Seen
   for INT8 in two ResNet-18 engines on an A100, and not for FP16 in a third.
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.targets.base import KernelType
from fuseq.targets.tensorrt.builder import DP4A_CHANNELS
from fuseq.targets.tensorrt.fuse_products import LOW_PRECISION
from fuseq.targets.tensorrt.layers import Layer, Network
from fuseq.targets.tensorrt.operators import is_global_average
from fuseq.targets.tensorrt.quantization import (
    DTYPE_WORDS,
    dequantizer,
    is_quantize,
    only_reader,
    scaling_of,
    stored_format,
)


def fuse_pools(network: Network) -> None:
    """Apply the cases to every pool."""
    for node in network.graph:
        if node not in network.owner:
            continue
        source = node.inputs[0] if node.inputs else None
        rank = len(source.shape) if source is not None and source.shape is not None else None
        if node.op_type == "AveragePool" or is_global_average(node, rank):
            layer = network.owner[node]
            layer.type, layer.word = KernelType.POOL, "CudaPooling"
            if node not in network.generated:
                quantize_layer(network, layer)  # case 1
        elif node.op_type == "MaxPool" and source is not None:
            _fuse_with_convolution(network, node, source)  # case 3


def quantize_layer(network: Network, layer: Layer) -> bool:
    """Fuse DQ on every computed input and Q on the only output into a layer without weights."""
    outputs = network.outputs(layer)
    inputs = network.runtime_inputs(layer)
    pairs = [dequantizer(value) for value in inputs]
    reader = only_reader(outputs[0]) if len(outputs) == 1 else None
    if reader is None or not is_quantize(reader) or not network.is_single(reader):
        return False
    formats = {stored_format(reader)}
    fused: list[ir.Node] = [reader]
    for pair in pairs:
        if pair is None or not network.is_single(pair):
            return False
        formats.add(stored_format(pair))
        fused.append(pair)
    if len(formats) != 1 or not formats <= LOW_PRECISION or scaling_of(reader).axis is not None:
        return False
    network.absorb(layer, fused)
    layer.operands = formats.pop()
    return True


def _fuse_with_convolution(network: Network, node: ir.Node, source: ir.Value) -> None:
    producer = source.producer()
    if producer is None or producer not in network.owner or only_reader(source) is not node:
        return
    layer = network.owner[producer]
    data = layer.anchor.inputs[0] if layer.anchor.inputs else None
    if layer.anchor.op_type != "Conv" or layer.operands != "int8" or data is None:
        return
    if DTYPE_WORDS.get(source.dtype or ir.DataType.UNDEFINED) != "int8" or data.shape is None:
        return
    if int(data.shape.numpy()[1]) <= DP4A_CHANNELS and layer.residual is None:
        network.absorb(layer, [node])
        layer.word = "ConvActPool"
