"""Step 5: pointwise layers that stand alone fuse with each other, and run in INT8 between pairs.

Sources: TensorRT documentation, "Layer Fusion Catalog", "PointWise Fusion" (adjacent pointwise
layers become one) and "Explicit Quantization", recommendation 5 with its figure (an element-wise
addition fused with the DQ on its inputs and the Q on its output; with one of them missing it runs in
float) [PointWiseFusion, EltwiseAddToPwn].
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.targets.base import KernelType
from fuseq.targets.tensorrt.fuse_pools import quantize_layer
from fuseq.targets.tensorrt.layers import Layer, Network
from fuseq.targets.tensorrt.operators import POINTWISE
from fuseq.targets.tensorrt.pointwise_block import pointwise_block
from fuseq.targets.tensorrt.quantization import dequantizer, is_quantize, only_reader


def fuse_pointwise(network: Network) -> None:
    """Fuse chains first, then the pairs around them, then the pairs left between two scales."""
    position = {node: number for number, node in enumerate(network.graph)}
    for node in network.graph:
        if node.op_type not in POINTWISE or not network.is_single(node):
            continue
        if node in network.generated:
            continue
        layer = network.owner[node]
        _fuse_chain(network, layer, position)
        if layer.type is KernelType.ELEMENTWISE:
            quantize_layer(network, layer)
    _fuse_requantize(network)


def _fuse_chain(network: Network, layer: Layer, position: dict[ir.Node, int]) -> None:
    end = layer.anchor.outputs[0]
    while True:
        block = _reader_block(network, layer, end, position)
        block = block or pointwise_block(end, network.constants)
        if not block or not all(network.is_single(node) for node in block):
            return
        network.absorb(layer, block)
        layer.type, layer.word = KernelType.ELEMENTWISE, "PointWiseV2"
        end = block[-1].outputs[0]


def _reader_block(
    network: Network, layer: Layer, end: ir.Value, position: dict[ir.Node, int]
) -> list[ir.Node]:
    """The only reader, when whatever else it reads exists before the layer starts."""
    reader = only_reader(end)
    if reader is None or reader.op_type not in POINTWISE or reader in network.generated:
        return []
    first = position[layer.anchor]
    for value in reader.inputs:
        if value is None or value is end or value in network.constants:
            continue
        for maker in network.makers(value):
            if max(position[node] for node in maker.nodes) >= first:
                return []
    return [reader]


def _fuse_requantize(network: Network) -> None:
    """DQ of one scale that only Q of another reads: one kernel from 8 bit to 8 bit."""
    for node in network.graph:
        if not is_quantize(node) or not network.is_single(node):
            continue
        pair = dequantizer(node.inputs[0])
        if pair is not None and only_reader(pair.outputs[0]) is node and network.is_single(pair):
            network.absorb(network.owner[node], [pair])
