"""Finds the nodes of a Q/DQ graph that one kernel of ours runs. Reads only.

Cases:
1. Linear: MatMul or Gemm whose weight is a DequantizeLinear of an 8-bit constant; then, each where
   the tensor before has no other reader: Add of a constant vector (bias), an activation (Relu,
   Gelu, x * Sigmoid(c * x)), Add of another tensor (residual), QuantizeLinear.
2. Attention: MatMul, optionally scaled (Mul, Div) and masked (Add), Softmax, optionally its own
   pair, MatMul; then Transpose and Reshape up to a QuantizeLinear, which the kernel writes itself.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.placement.patterns import constant_of

_VIEWS = ("Transpose", "Reshape")


@dataclasses.dataclass(frozen=True)
class Linear:
    """One GEMM with what its kernel does to the result.

    Attributes:
        product: The MatMul or Gemm.
        weight: Its weight's DequantizeLinear.
        bias: Constant vector added, or None.
        activation: ``none``, ``relu``, ``gelu``, ``gelu_tanh`` or ``sigmoid`` (x * sigmoid(slope * x)).
        slope: Factor inside the sigmoid.
        residual: Tensor added after the activation, or None.
        quantize: QuantizeLinear of the result, or None.
        nodes: All nodes that the kernel replaces, in graph order.
    """

    product: ir.Node
    weight: ir.Node
    bias: ir.Value | None
    activation: str
    slope: float
    residual: ir.Value | None
    quantize: ir.Node | None
    nodes: tuple[ir.Node, ...]


@dataclasses.dataclass(frozen=True)
class Attention:
    """``softmax(scale * q @ k + mask) @ v`` in one kernel.

    Attributes:
        query: [..., queries, size].
        key: [..., size, keys]: as the product reads it, transposed.
        value: [..., keys, size].
        scale: Factor of the products.
        mask: Tensor added to the products, or None.
        result: The last MatMul's output.
        views: Transpose and Reshape nodes between the result and ``quantize``.
        quantize: QuantizeLinear that the kernel does itself, or None.
        nodes: All nodes that the kernel replaces, in graph order.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    scale: float
    mask: ir.Value | None
    result: ir.Value
    views: tuple[ir.Node, ...]
    quantize: ir.Node | None
    nodes: tuple[ir.Node, ...]


Fusion = Linear | Attention


def find_fusions(graph: ir.Graph) -> tuple[Fusion, ...]:
    """Every fusion of the graph, none sharing a node with another."""
    taken: set[ir.Node] = set()
    found: list[Fusion] = []
    for node in graph:
        match: Fusion | None = _attention(node) if node.op_type == "Softmax" else _linear(node)
        if match is not None and not taken.intersection(match.nodes):
            taken.update(match.nodes)
            found.append(match)
    return tuple(found)


def only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads ``value``, if no other and no output does."""
    readers = {use.node for use in value.uses()}
    if len(readers) != 1 or value.is_graph_output():
        return None
    return next(iter(readers))


def _linear(node: ir.Node) -> Linear | None:
    if node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < 2:
        return None
    weight = _producer(node.inputs[1], "DequantizeLinear")
    if weight is None or constant_of(weight.inputs[0]) is None:
        return None
    if node.op_type == "Gemm" and not _is_plain_gemm(node):
        return None
    nodes = [node]
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
    if bias is None and (added := _bias_of(node.outputs[0])) is not None:
        nodes.append(added)
        bias = next(value for value in added.inputs if constant_of(value) is not None)
    activation, slope, more = _activation_of(nodes[-1].outputs[0])
    nodes.extend(more)
    residual = None
    if (join := _residual_of(nodes[-1].outputs[0])) is not None:
        residual = next(value for value in join.inputs if value is not nodes[-1].outputs[0])
        nodes.append(join)
    quantize = _quantize_of(nodes[-1].outputs[0])
    if quantize is not None:
        nodes.append(quantize)
    return Linear(node, weight, bias, activation, slope, residual, quantize, tuple(nodes))


def _is_plain_gemm(node: ir.Node) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    flat = bias is None or (constant_of(bias) is not None and _rank(bias) == 1)
    return factors == [1.0, 1.0] and not node.attributes.get_int("transA", 0) and flat


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def _bias_of(value: ir.Value) -> ir.Node | None:
    reader = only_reader(value)
    if reader is None or reader.op_type != "Add":
        return None
    constants = [other for other in reader.inputs if constant_of(other) is not None]
    return reader if len(constants) == 1 and _rank(constants[0]) == 1 else None


def _activation_of(value: ir.Value) -> tuple[str, float, list[ir.Node]]:
    reader = only_reader(value)
    if reader is not None:
        if reader.op_type == "Relu":
            return "relu", 0.0, [reader]
        if reader.op_type == "Gelu":
            how = reader.attributes.get_string("approximate", "none")
            return ("gelu_tanh" if how == "tanh" else "gelu"), 0.0, [reader]
    return _gated(value) or ("none", 0.0, [])


def _gated(value: ir.Value) -> tuple[str, float, list[ir.Node]] | None:
    """``x * Sigmoid(x)`` (SiLU) and ``x * Sigmoid(c * x)`` (CLIP's approximation of GELU)."""
    readers = [use.node for use in value.uses()]
    if len(readers) != 2 or value.is_graph_output():
        return None
    nodes: list[ir.Node] = []
    slope = 1.0
    for reader in readers:
        if reader.op_type == "Mul" and (factor := _scalar_beside(reader, value)) is not None:
            inner = only_reader(reader.outputs[0])
            slope, nodes = factor, [reader, *([inner] if inner is not None else [])]
        elif reader.op_type == "Sigmoid":
            nodes = [reader]
    gate = nodes[-1] if nodes and nodes[-1].op_type == "Sigmoid" else None
    product = only_reader(gate.outputs[0]) if gate is not None else None
    if product is None or product.op_type != "Mul" or product not in readers:
        return None
    return "sigmoid", slope, [*nodes, product]


def _scalar_beside(node: ir.Node, value: ir.Value) -> float | None:
    others = [other for other in node.inputs if other is not value]
    tensor = constant_of(others[0]) if len(others) == 1 else None
    return float(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None


def _residual_of(value: ir.Value) -> ir.Node | None:
    reader = only_reader(value)
    if reader is None or reader.op_type != "Add" or value.shape is None:
        return None
    others = [other for other in reader.inputs if other is not value and other is not None]
    if len(others) != 1 or constant_of(others[0]) is not None:
        return None
    return reader if others[0].shape == value.shape and others[0].dtype == value.dtype else None


def _quantize_of(value: ir.Value) -> ir.Node | None:
    reader = only_reader(value)
    if reader is None or reader.op_type != "QuantizeLinear":
        return None
    scale = constant_of(reader.inputs[1])
    return reader if scale is not None and scale.size == 1 else None


def _attention(softmax: ir.Node) -> Attention | None:
    scores = softmax.inputs[0]
    if scores is None or softmax.attributes.get_int("axis", -1) not in (-1, _last_axis(scores)):
        return None
    nodes = [softmax]
    mask: ir.Value | None = None
    scale = 1.0
    producer = scores.producer()
    if producer is not None and producer.op_type == "Add" and only_reader(scores) is softmax:
        products = [value for value in producer.inputs if _leads_to_product(value)]
        if len(products) != 1:
            return None
        mask = next(value for value in producer.inputs if value is not products[0])
        nodes.insert(0, producer)
        producer = products[0].producer() if products[0] is not None else None
    if producer is not None and (factor := _factor(producer)) is not None:
        nodes.insert(0, producer)
        scale, producer = factor, _inner(producer)
    if producer is None or producer.op_type != "MatMul":
        return None
    nodes.insert(0, producer)
    return _whole(producer, softmax, nodes, scale, mask)


def _whole(
    product: ir.Node, softmax: ir.Node, nodes: list[ir.Node], scale: float, mask: ir.Value | None
) -> Attention | None:
    probabilities = softmax.outputs[0]
    for op_type in ("QuantizeLinear", "DequantizeLinear"):
        reader = only_reader(probabilities)
        if reader is not None and reader.op_type == op_type:
            nodes.append(reader)
            probabilities = reader.outputs[0]
    last = only_reader(probabilities)
    if last is None or last.op_type != "MatMul" or last.inputs[0] is not probabilities:
        return None
    nodes.append(last)
    query, key, value = product.inputs[0], product.inputs[1], last.inputs[1]
    if query is None or key is None or value is None:
        return None
    views, quantize = _views_to_quantize(last.outputs[0])
    if quantize is not None:
        nodes.extend((*views, quantize))
    return Attention(
        query, key, value, scale, mask, last.outputs[0], views, quantize, tuple(nodes)
    )  # fmt: skip


def _views_to_quantize(value: ir.Value) -> tuple[tuple[ir.Node, ...], ir.Node | None]:
    views: list[ir.Node] = []
    while (reader := only_reader(value)) is not None and reader.op_type in _VIEWS:
        if reader.inputs[0] is not value:
            break
        views.append(reader)
        value = reader.outputs[0]
    quantize = _quantize_of(value)
    return (tuple(views), quantize) if quantize is not None else ((), None)


def _last_axis(value: ir.Value) -> int:
    return (_rank(value) or 0) - 1


def _factor(node: ir.Node) -> float | None:
    """The constant that a Mul or Div applies to its first computed input."""
    if node.op_type not in ("Mul", "Div"):
        return None
    computed = _inner_value(node)
    if computed is None or (node.op_type == "Div" and node.inputs[0] is not computed):
        return None
    factor = _scalar_beside(node, computed)
    if factor is None:
        return None
    return factor if node.op_type == "Mul" else float(1.0 / np.float64(factor))


def _inner_value(node: ir.Node) -> ir.Value | None:
    computed = [value for value in node.inputs if constant_of(value) is None]
    return computed[0] if len(computed) == 1 else None


def _inner(node: ir.Node) -> ir.Node | None:
    value = _inner_value(node)
    return value.producer() if value is not None and only_reader(value) is node else None


def _leads_to_product(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    if node is not None and _factor(node) is not None:
        node = _inner(node)
    return node is not None and node.op_type == "MatMul"
