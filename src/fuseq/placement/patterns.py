"""Finds the subgraphs that the planner decides on. Reads only; every refusal is a sentence.

Patterns: weighted node (Conv, ConvTranspose, Gemm, MatMul with a constant weight) with its epilogue,
depthwise, squeeze-excite, attention, product of activations, residual join, data operator.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

ACTIVATIONS = frozenset(
    {
        "Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid",
        "HardSwish", "Tanh", "Softplus", "Softsign", "Mish", "Gelu", "ThresholdedRelu", "Swish",
    }
)  # fmt: skip
NORMALIZATIONS = frozenset(
    {
        "LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization",
        "BatchNormalization", "LpNormalization", "SimplifiedLayerNormalization",
    }
)  # fmt: skip
PASS_THROUGH = frozenset(
    {
        "MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split",
        "Gather", "Expand", "Identity", "Concat", "DepthToSpace", "SpaceToDepth", "Resize", "Pad",
    }
)  # fmt: skip
"""Operators that copy values: both sides can share one scale. Resize only in nearest mode."""

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_POOLED = frozenset({"GlobalAveragePool", "ReduceMean"})
_SCORE_STEPS = frozenset({"Add", "Mul", "Div", "Sub", "Where", "Cast"})
_HEAD_STEPS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
_MAX_STEPS = 6


@dataclasses.dataclass(frozen=True)
class Weighted:
    """A node with a constant weight.

    ``channel_axis`` is the weight's output-channel axis: Conv [O, I/g, ...] 0, ConvTranspose
    [I, O/g, ...] 1, Gemm [K, N] 1 or transposed 0, MatMul [K, N] 1 (last).
    """

    node: ir.Node
    data: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    channel_axis: int
    groups: int

    @property
    def is_conv(self) -> bool:
        """Conv or ConvTranspose."""
        return self.node.op_type in ("Conv", "ConvTranspose")

    @property
    def is_depthwise(self) -> bool:
        """One input channel a group, and more than one group."""
        return self.is_conv and self.groups > 1 and _dim(self.weight, 1) == 1


@dataclasses.dataclass(frozen=True)
class Attention:
    """``softmax(scores(q @ k) ) @ v``: the four tensors and their readers."""

    softmax: ir.Node
    scores: ir.Node
    product: ir.Node
    nodes: tuple[ir.Node, ...]


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer that is not a graph input, else None."""
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value


def is_float_activation(value: ir.Value | None) -> bool:
    """A float tensor that is computed or fed at run time."""
    return value is not None and value.dtype in _FLOATS and constant_of(value) is None


def weighted(node: ir.Node) -> Weighted | None:
    """Match a node with a float constant weight and a float activation; None for any other."""
    if node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return None
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return None
    data, weight = node.inputs[0], node.inputs[1]
    if data is None or weight is None or not is_float_activation(data):
        return None
    tensor = constant_of(weight)
    if tensor is None or tensor.dtype not in _FLOATS or len(tensor.shape) < 2:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    axis = {"Conv": 0, "ConvTranspose": 1, "MatMul": len(tensor.shape) - 1}.get(node.op_type)
    if axis is None:
        axis = 0 if node.attributes.get_int("transB", 0) else 1
    groups = node.attributes.get_int("group", 1) or 1
    return Weighted(node, data, weight, bias, axis, groups)


def epilogue(node: ir.Node) -> list[ir.Node]:
    """Bias, BatchNorm and activation nodes behind ``node`` that read nothing else computed.

    Cases: 1. Add or Mul with a constant; 2. a one-input activation; 3. x * Sigmoid(x) and
    x * HardSigmoid(x), where the product has two readers' edges from the same tensor.
    """
    nodes: list[ir.Node] = []
    current = node
    while len(nodes) < _MAX_STEPS:
        following = _next_step(current)
        if following is None:
            return nodes
        nodes.extend(following)
        current = following[-1]
    return nodes


def _next_step(node: ir.Node) -> list[ir.Node] | None:
    out = node.outputs[0]
    if out.is_graph_output():
        return None
    readers = list(dict.fromkeys(use.node for use in out.uses()))
    if len(readers) == 1 and len(out.uses()) == 1:
        reader = readers[0]
        if reader.op_type in ACTIVATIONS or reader.op_type == "BatchNormalization":
            return [reader]
        if reader.op_type in ("Add", "Mul") and any(
            constant_of(value) is not None for value in reader.inputs
        ):
            return [reader]
        return None
    if len(readers) == 2:
        return _gated(out, readers)
    return None


def _gated(out: ir.Value, readers: list[ir.Node]) -> list[ir.Node] | None:
    gates = [r for r in readers if r.op_type in ("Sigmoid", "HardSigmoid")]
    products = [r for r in readers if r.op_type == "Mul"]
    if len(gates) != 1 or len(products) != 1:
        return None
    gate, product = gates[0], products[0]
    gate_out = gate.outputs[0]
    if gate_out.is_graph_output() or len(gate_out.uses()) != 1:
        return None
    return [gate, product] if {*product.inputs} == {out, gate_out} else None


def attention_at(softmax: ir.Node) -> Attention | str:
    """Match the attention around a Softmax, or say in words why there is none."""
    out = softmax.outputs[0]
    uses = list(out.uses())
    if len(uses) != 1 or uses[0].node.op_type != "MatMul" or uses[0].idx != 0:
        return "the softmax output is not read by exactly one MatMul as its left input"
    product = uses[0].node
    if not all(is_float_activation(value) for value in product.inputs):
        return "the product behind the softmax has a constant operand"
    path: list[ir.Node] = []
    value = softmax.inputs[0]
    for _ in range(_MAX_STEPS):
        producer = value.producer() if value is not None else None
        if producer is None:
            return "no MatMul was found before the softmax"
        if producer.op_type == "MatMul":
            if not all(is_float_activation(v) for v in producer.inputs):
                return "the scores are a product with a constant"
            nodes = (producer, *reversed(path), softmax, product)
            return Attention(softmax, producer, product, nodes)
        if producer.op_type not in _SCORE_STEPS:
            return f"{producer.op_type} stands between the scores and the softmax"
        path.append(producer)
        value = _score_input(producer)
    return "the scores are too far from the softmax"


def _score_input(node: ir.Node) -> ir.Value | None:
    """The input that leads to the scores: the one whose producers reach a MatMul."""
    for value in node.inputs:
        seen = value
        for _ in range(_MAX_STEPS):
            producer = seen.producer() if seen is not None else None
            if producer is None:
                break
            if producer.op_type == "MatMul":
                return value
            if producer.op_type not in _SCORE_STEPS:
                break
            seen = next((v for v in producer.inputs if is_float_activation(v)), None)
    return None


def split_of(found: Attention) -> ir.Node | None:
    """The Split that cuts one tensor into this attention's Q, K and V, and nothing else."""
    values = (found.scores.inputs[0], found.scores.inputs[1], found.product.inputs[1])
    splits = {_split_behind(value) for value in values}
    split = next(iter(splits))
    if len(splits) != 1 or split is None or not is_float_activation(split.inputs[0]):
        return None
    source = split.inputs[0]
    return split if source is not None and len(source.uses()) == 1 else None


def _split_behind(value: ir.Value | None) -> ir.Node | None:
    """Walk back over heads' reshapes and transposes and a constant scale to a Split."""
    for _ in range(_MAX_STEPS):
        producer = value.producer() if value is not None else None
        if producer is None or producer.op_type == "Split":
            return producer
        scales = producer.op_type in ("Mul", "Div") and any(
            constant_of(other) is not None for other in producer.inputs
        )
        if producer.op_type not in _HEAD_STEPS and not scales:
            return None
        value = next((other for other in producer.inputs if is_float_activation(other)), None)
    return None


def residual_inputs(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The two activations of an Add of equal shapes; None for any other node."""
    if node.op_type != "Add" or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None or left is right:
        return None
    if not (is_float_activation(left) and is_float_activation(right)):
        return None
    if left.shape is None or right.shape is None or left.shape != right.shape:
        return None
    return left, right


def is_squeeze_excite(node: Weighted) -> bool:
    """Its data is a global average, at most four nodes back."""
    value: ir.Value | None = node.data
    for _ in range(4):
        producer = value.producer() if value is not None else None
        if producer is None:
            return False
        if producer.op_type in _POOLED:
            return True
        value = producer.inputs[0] if producer.inputs else None
    return False


def is_split_afterwards(match: Weighted) -> bool:
    """What it computes, bias included, is cut into parts: Q, K and V as one product."""
    last = ([match.node, *epilogue(match.node)])[-1]
    return any(use.node.op_type in ("Split", "Slice") for use in last.outputs[0].uses())


def copies_values(node: ir.Node | None) -> bool:
    """The node only moves values, so that one scale serves both sides."""
    if node is None or node.op_type not in PASS_THROUGH:
        return False
    if node.op_type == "Resize":
        mode = node.attributes.get_string("mode", "nearest")
        return mode == "nearest"
    return True


def _dim(value: ir.Value, axis: int) -> int | None:
    tensor = value.const_value
    return int(tensor.shape.numpy()[axis]) if tensor is not None else None
