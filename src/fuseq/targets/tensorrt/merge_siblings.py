"""Step 6: products of one tensor with one shape of work become one kernel ("Merging layers: a || b").

Sources: TensorRT's verbose log (the heads of a YOLOv8 with Q/DQ, whose first convolutions share their
input's pair, are merged; https://github.com/NVIDIA/TensorRT/issues/1602 shows that pairs of their own
keep two convolutions apart), and https://github.com/NVIDIA/TensorRT/issues/4397 (Q, K and V).

1. The same stored input: the same tensor, in float or behind the same pair.
2. The same kernel size, stride, padding and dilation, one group; the same epilogue operators; no Add.
3. The same type of result.
The results are slices of one tensor and cost no copy.
"""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from fuseq.targets.tensorrt.layers import Layer, Network
from fuseq.targets.tensorrt.quantization import dequantizer, is_dequantize, scaling_of

_GEOMETRY = ("kernel_shape", "strides", "pads", "dilations", "auto_pad")


def merge_siblings(network: Network) -> None:
    """Merge every set of products that agree on all cases."""
    groups: dict[Hashable, list[Layer]] = {}
    for layer in sorted(set(network.owner.values()), key=lambda layer: layer.order):
        key = _key(network, layer)
        if key is not None:
            groups.setdefault(key, []).append(layer)
    for first, *others in groups.values():
        for other in others:
            network.absorb(first, [other.anchor])


def _key(network: Network, layer: Layer) -> Hashable | None:
    node = layer.anchor
    if node.op_type not in ("Conv", "MatMul", "Gemm") or layer.residual is not None:
        return None
    if layer.word == "ConvActPool" or (node.attributes.get_int("group", 1) or 1) != 1:
        return None
    data, weight = node.inputs[0], node.inputs[1]
    outputs = network.outputs(layer)
    if weight not in network.constants or weight is None or weight.shape is None or not outputs:
        return None
    pair = dequantizer(data) if layer.operands else None
    source = (pair.inputs[0], scaling_of(pair)) if pair is not None else (data, None)
    epilogue = tuple(other.op_type for other in layer.nodes if not is_dequantize(other))
    size = tuple(weight.shape.numpy())
    shape = size[1:] if node.op_type == "Conv" else size[:1]
    return (source, epilogue, shape, outputs[0].dtype, _geometry(node))


def _geometry(node: ir.Node) -> tuple[Hashable, ...]:
    return tuple(
        str(node.attributes[name].value) if name in node.attributes else "" for name in _GEOMETRY
    )
