"""HardSwish and HardSigmoid between integers, in operators that have integer kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import float_attribute, is_op, made_by, only_reader
from fuseq.passes.names import fix_names, value_names
from fuseq.passes.splice import new_constant, replace, typed

_WEIGHT_STEPS = 63
"""The one weight is stored as 63: 7 bits, so that no processor's products saturate."""


def write_hard_activations(model: ir.Model) -> list[str]:
    """Rewrite, in place, ``DequantizeLinear -> HardSwish or HardSigmoid -> QuantizeLinear``.

    1. The gate ``HardSigmoid(x) = max(0, min(1, alpha * x + beta))`` (ONNX HardSigmoid-6) is a
       depthwise 1x1 convolution, weight ``alpha`` and bias ``beta``, and a Clip to [0, 1].
    2. ``HardSwish(x) = x * HardSigmoid(x)``, alpha 1/6 and beta 1/2 (ONNX HardSwish-14): the gate,
       stored as uint8 with scale 1/255, and a Mul.

    ONNX Runtime's CPU provider has no integer kernel for the operators themselves, but one for a
    convolution that ends in a Clip and one for Mul. In float it fuses the operators into the
    convolution before, so the float model keeps them. ``x [N, C, ...]`` needs a known C.
    """
    taken = value_names(model)
    found = [node for node in model.graph if is_op(node, "HardSwish", "HardSigmoid")]
    for node in found:
        source = made_by(node.inputs[0], "DequantizeLinear")
        reader = only_reader(node.outputs[0])
        data = node.inputs[0]
        if source is None or data is None or reader is None or channels_of(data) is None:
            continue
        if is_op(reader, "QuantizeLinear") and source.inputs[1] is not None:
            _rewrite(model.graph, node, source, taken)
    return fix_names(model) if found else []


def channels_of(value: ir.Value) -> int | None:
    """Number of channels of ``[N, C, ...]`` with at least one axis more; None if it is unknown."""
    if value.shape is None or len(value.shape) < 3 or not isinstance(value.shape[1], int):
        return None
    return int(value.shape[1])


def _rewrite(graph: ir.Graph, node: ir.Node, source: ir.Node, taken: set[str]) -> None:
    data = source.outputs[0]
    gate = _gate(graph, node, source, taken)
    new = gate
    if node.op_type == "HardSwish":
        pair = _stored(graph, gate[-1].outputs[0], node, taken)
        new = [*gate, *pair, ir.node("Mul", [data, pair[-1].outputs[0]], name=node.name)]
    for each in new[:-1]:
        if each.outputs[0].shape is None:
            each.outputs[0].shape = data.shape
    replace(graph, [node], new, [node.outputs[0]], [new[-1].outputs[0]])


def _gate(graph: ir.Graph, node: ir.Node, source: ir.Node, taken: set[str]) -> list[ir.Node]:
    """Dequantized weight and bias, convolution and Clip."""
    data, scale = source.outputs[0], source.inputs[1]
    assert scale is not None and scale.const_value is not None  # a pair's scale is constant
    is_swish = node.op_type == "HardSwish"
    alpha = 1 / 6 if is_swish else float_attribute(node, "alpha", 0.2)
    beta = 0.5 if is_swish else float_attribute(node, "beta", 0.5)
    channels = channels_of(data) or 1
    weight_scale = np.float32(alpha / _WEIGHT_STEPS)
    bias_scale = np.float32(weight_scale * scale.const_value.numpy().astype(np.float32))
    kernel = (channels, 1, *[1] * (len(data.shape or ()) - 2))
    weight = np.full(kernel, _WEIGHT_STEPS, np.int8)
    bias = np.full(channels, np.rint(beta / np.float64(bias_scale)), np.int32)

    def constant(role: str, value: np.ndarray | np.float32) -> ir.Value:
        return new_constant(graph, f"{node.name}_{role}", np.asarray(value), taken)

    def dequantized(role: str, value: np.ndarray, its_scale: np.float32) -> ir.Node:
        zero = constant(f"{role}_zero_point", np.zeros((), value.dtype))
        inputs = [constant(role, value), constant(f"{role}_scale", its_scale), zero]
        made = ir.node("DequantizeLinear", inputs, name=f"{node.name}_{role}_dequantize")
        return typed(made, data.dtype, ir.Shape(value.shape))

    parts = [dequantized("alpha", weight, weight_scale), dequantized("beta", bias, bias_scale)]
    inputs = [data, *(part.outputs[0] for part in parts)]
    line = typed(ir.node("Conv", inputs, {"group": channels}, name=f"{node.name}_line"), data.dtype)
    bounds = [constant("low", np.float32(0)), constant("high", np.float32(1))]
    clip = ir.node("Clip", [line.outputs[0], *bounds], name=f"{node.name}_gate")
    return [*parts, line, typed(clip, data.dtype)]


def _stored(
    graph: ir.Graph, gate: ir.Value, node: ir.Node, taken: set[str]
) -> tuple[ir.Node, ir.Node]:
    """The pair that stores the gate: scale rounded down, so that 255 steps stay within 1."""
    scale = np.float32(1 / 255)
    while np.float32(scale * np.float32(255)) > 1:
        scale = np.nextafter(scale, np.float32(0))
    inputs = [
        new_constant(graph, f"{node.name}_gate_scale", np.asarray(scale), taken),
        new_constant(graph, f"{node.name}_gate_zero_point", np.asarray(np.uint8(0)), taken),
    ]
    quantize = ir.node("QuantizeLinear", [gate, *inputs], name=f"{node.name}_gate_quantize")
    typed(quantize, ir.DataType.UINT8)
    dequantize = ir.node(
        "DequantizeLinear", [quantize.outputs[0], *inputs], name=f"{node.name}_gate_dequantize"
    )
    return quantize, typed(dequantize, gate.dtype)
