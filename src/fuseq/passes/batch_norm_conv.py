"""BatchNormalization that no convolution before it absorbs becomes a depthwise 1x1 convolution."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import array, float_attribute, integer_attribute, is_op
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant, replace


def batch_norms_to_convs(model: ir.Model) -> list[str]:
    """Rewrite, in place, BatchNormalization in inference with constant statistics.

    ``y = (x - mean) / sqrt(var + epsilon) * scale + bias`` (ONNX BatchNormalization-15) is a
    depthwise convolution with weight ``scale / sqrt(var + epsilon)`` and bias
    ``bias - mean * weight``, for ``x [N, C, H, W]`` (rank 3 and 5 too). It has an integer kernel
    with one scale a channel, which absorbs the Relu behind it (DenseNet, pre-activation ResNet).
    """
    taken = value_names(model)
    for node in list(model.graph):
        if not is_op(node, "BatchNormalization") or integer_attribute(node, "training_mode", 0):
            continue
        data = node.inputs[0]
        if data is None or data.shape is None or len(data.shape) not in (3, 4, 5):
            continue
        statistics = [array(value) for value in node.inputs[1:5]]
        if data.dtype == ir.DataType.FLOAT and all(part is not None for part in statistics):
            _rewrite(model.graph, node, data, [p for p in statistics if p is not None], taken)
    return []


def _rewrite(
    graph: ir.Graph, node: ir.Node, data: ir.Value, statistics: list[np.ndarray], taken: set[str]
) -> None:
    scale, bias, mean, variance = (part.astype(np.float64) for part in statistics)
    weight = scale / np.sqrt(variance + float_attribute(node, "epsilon", 1e-5))
    offset = bias - mean * weight
    channels = weight.size
    kernel = (channels, 1, *[1] * (len(data.shape or ()) - 2))
    inputs = [
        data,
        new_constant(
            graph, f"{node.name}_weight", weight.reshape(kernel).astype(np.float32), taken
        ),
        new_constant(graph, f"{node.name}_bias", offset.astype(np.float32), taken),
    ]
    conv = ir.node("Conv", inputs, {"group": channels}, name=node.name)
    replace(graph, [node], [conv], [node.outputs[0]], [conv.outputs[0]])
