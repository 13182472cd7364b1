"""The fusion model of full TensorRT: predicts the layer list of an engine that nobody has built.

It applies TensorRT's documented optimizations, one module each, in the order of TensorRT's own verbose
log, and measures nothing. ``tests/targets/test_tensorrt_fusion.py`` compares it with real engines.
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.source_lines import source_line
from fuseq.targets.base import Kernel, KernelType, ShapeProfile
from fuseq.targets.tensorrt.assign import assign
from fuseq.targets.tensorrt.builder import Builder
from fuseq.targets.tensorrt.drop_copies import drop_copies
from fuseq.targets.tensorrt.fuse_attention import fuse_attention
from fuseq.targets.tensorrt.fuse_generated import fuse_generated
from fuseq.targets.tensorrt.fuse_pointwise import fuse_pointwise
from fuseq.targets.tensorrt.fuse_pools import fuse_pools
from fuseq.targets.tensorrt.fuse_products import fuse_products, is_depthwise
from fuseq.targets.tensorrt.kernels import kernels_of
from fuseq.targets.tensorrt.layers import Network, network_of
from fuseq.targets.tensorrt.merge_siblings import merge_siblings
from fuseq.targets.tensorrt.move_quantize import move_quantization
from fuseq.targets.tensorrt.prepare import origin, prepare
from fuseq.targets.tensorrt.refusals import refuse
from fuseq.targets.tensorrt.regions import generated_nodes, is_fully_connected


def simulate(
    model: ir.Model, profile: ShapeProfile, builder: Builder
) -> tuple[tuple[Kernel, ...], tuple[str, ...]]:
    """Kernels in launch order, without times, and notes.

    Raises:
        TargetError: TensorRT would refuse the model; the message names the node.
    """
    copy = prepare(model, profile)
    refuse(copy.graph, builder)
    move_quantization(copy.graph)
    network = network_of(copy.graph, builder)
    network.generated = generated_nodes(network)
    _convolutions(network)
    fuse_attention(network)
    fuse_products(network)
    fuse_pools(network)
    fuse_pointwise(network)
    merge_siblings(network)
    fuse_generated(network)
    homes = drop_copies(network)
    layers = network.ordered()
    lines = {origin(node): line for node in copy.graph if (line := source_line(node))}
    kernels = kernels_of(network, layers, assign(network, layers), homes, lines)
    return kernels, tuple(network.notes)


def _convolutions(network: Network) -> None:
    """Fully connected layers outside the ML compiler's regions are 1x1 convolutions, and depthwise
    convolutions have a kernel of their own."""
    for node, layer in network.owner.items():
        if node not in network.generated and is_fully_connected(node, network):
            layer.type, layer.word = KernelType.CONVOLUTION, "CaskConvolution"
        elif node.op_type == "Conv" and is_depthwise(node):
            layer.word = "CudaDepthwiseConvolution"
