"""What the graph itself tells about its tensors: where else the same values are, and their sign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

_REARRANGING = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""Operators whose output holds exactly the values of input 0."""

_NEVER_NEGATIVE = frozenset({"Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Sqrt", "Exp"})

_KEEPS_SIGN = frozenset(
    {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Add", "Sum", "Concat", "Mul"}
)
"""Operators that give no negative value where no input has one. MaxPool takes no part in padding,
AveragePool pads with 0."""

_BLOCKED = frozenset(
    {
        "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "HardSigmoid",
        "HardSwish", "LeakyRelu", "MaxPool", "Mul", "Relu", "Sigmoid", "Sum", "Tanh",
    }
)  # fmt: skip
"""Operators of convolutional nets that hand on ONNX Runtime's blocked layout (NCHWc)."""


def values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    """Inputs and node outputs of the main graph; what is inside branches is not there."""
    found = {value.name or "": value for value in graph.inputs}
    for node in graph:
        found.update((value.name or "", value) for value in node.outputs if value.name)
    return found


def representative(value: ir.Value) -> ir.Value:
    """The value farthest up that holds exactly the same values, in whatever order."""
    while True:
        node = value.producer()
        if node is None or node.op_type not in _REARRANGING or node.domain != "":
            return value
        source = node.inputs[0]
        if source is None or source.dtype != value.dtype:
            return value
        value = source


def never_negative(graph: ir.Graph) -> frozenset[ir.Value]:
    """Values that cannot be below 0 by the definition of their operators."""
    found: set[ir.Value] = set()
    for node in graph:
        if node.domain != "":
            continue
        if node.op_type in _NEVER_NEGATIVE or (node.op_type == "Clip" and _clips_at_zero(node)):
            found.update(node.outputs)
        elif node.op_type in _KEEPS_SIGN and _all_in(node.inputs, found):
            found.add(node.outputs[0])
        elif node.op_type in _REARRANGING and node.inputs[0] in found:
            found.update(node.outputs)
    return frozenset(found)


def in_blocked_layout(graph: ir.Graph) -> frozenset[ir.Value]:
    """Four-dimensional values between convolutions, where ONNX Runtime may keep NCHWc.

    A reduction of such a value would first have it copied into NCHW; GlobalMaxPool reads NCHWc.
    """
    found: set[ir.Value] = set()
    for node in graph:
        if node.domain != "" or node.op_type not in _BLOCKED or not node.outputs:
            continue
        value = node.outputs[0]
        if value.shape is None or len(value.shape) != 4:
            continue
        if node.op_type == "Conv" or any(source in found for source in node.inputs):
            found.add(value)
    return frozenset(found)


def resolve(names: Iterable[str], graph: ir.Graph) -> Mapping[str, ir.Value | None]:
    """The value to watch for each name; None where the main graph has no tensor of that name."""
    known = values_by_name(graph)
    return {
        name: representative(known[name]) if name in known else None
        for name in dict.fromkeys(names)
    }


def _all_in(values: Iterable[ir.Value | None], found: set[ir.Value]) -> bool:
    return all(value in found for value in values if value is not None)


def _clips_at_zero(node: ir.Node) -> bool:
    if "min" in node.attributes:  # opset 6
        return float(node.attributes["min"].as_float()) >= 0
    low = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if low is None else low.const_value
    return tensor is not None and bool((tensor.numpy() >= 0).all())
