"""The model without Q/DQ, to compile beside the quantized one. Node names stay, so engines compare."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.passes.matching import constant
from fuseq.passes.quantizers import (
    dequantized_values,
    is_dequantize,
    is_quantize,
    quantized_values,
    read_quantizer,
)
from fuseq.passes.typing import set_precision

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def float_twin(model: ir.Model, precision: str) -> ir.Model | None:
    """A copy in float whose Q/DQ are bypassed; None when a quantizer cannot be read.

    A file of FP32 alone becomes ``precision``; one that has FP16 already keeps its types, because
    somebody has decided which parts stay FP32.

    1. A DequantizeLinear behind a QuantizeLinear: its readers read the float tensor.
    2. A DequantizeLinear of a constant, and a QuantizeLinear of a constant: the values themselves.
    """
    twin = model.clone()
    for node in list(twin.graph):
        if is_quantize(node) and constant(node.inputs[0]) is not None:
            if not _to_constant(twin.graph, node):
                return None
        elif is_dequantize(node) and not _bypass(twin.graph, node):
            return None
    common.RemoveUnusedNodesPass()(twin)
    if not any(v.dtype in _HALVES for node in twin.graph for v in node.outputs):
        set_precision(twin, precision)
    return twin


def _bypass(graph: ir.Graph, node: ir.Node) -> bool:
    source = node.inputs[0]
    if constant(source) is not None:
        return _to_constant(graph, node)  # case 2
    quantize = source.producer() if source is not None else None
    before = quantize.inputs[0] if quantize is not None and is_quantize(quantize) else None
    if before is None:
        return False
    out = node.outputs[0]
    if out.is_graph_output():
        return True  # one pair at the model's own output is left as it is
    out.replace_all_uses_with(_as_type(graph, before, out))  # case 1
    return True


def _as_type(graph: ir.Graph, value: ir.Value, like: ir.Value) -> ir.Value:
    """``value`` in the type of ``like``: a pair may read FP32 and write FP16, as a Cast does."""
    if like.dtype is None or value.dtype == like.dtype:
        return value
    cast = ir.node("Cast", [value], {"to": int(like.dtype)}, name=f"{like.name}_cast")
    out = cast.outputs[0]
    out.name, out.shape, out.type = f"{like.name}_float", value.shape, ir.TensorType(like.dtype)
    maker = like.producer()
    if maker is not None:
        graph.insert_before(maker, cast)
    return out


def _to_constant(graph: ir.Graph, node: ir.Node) -> bool:
    by, tensor = read_quantizer(node), constant(node.inputs[0])
    if isinstance(by, str) or tensor is None or by.problem:
        return False
    out = node.outputs[0]
    convert = dequantized_values if is_dequantize(node) else quantized_values
    array = convert(tensor.numpy(), by)
    if is_dequantize(node) and out.dtype is not None:
        array = array.astype(out.dtype.numpy())
    name = f"{out.name}_constant"
    made = ir.Tensor(array, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(made.dtype), const_value=made
    )
    graph.register_initializer(value)
    out.replace_all_uses_with(value)
    return not out.is_graph_output()


def shape_of_graph(twin: ir.Model) -> str:
    """Everything of a float graph that decides its kernels: nodes, attributes, types, shapes, small constants.

    Values of weights and names of tensors do not count, so that twins of a file before and after a fix of
    its Q/DQ are known to be one.
    """
    lines = [f"{twin.opset_imports}", *map(_tensor_text, twin.graph.inputs)]
    for node in twin.graph:
        attributes = sorted(f"{name}={value.value}" for name, value in node.attributes.items())
        inputs = [_tensor_text(value) for value in node.inputs]
        outputs = [f"{value.dtype} {value.shape}" for value in node.outputs]
        lines.append(f"{node.name} {node.domain}.{node.op_type} {attributes} {inputs} {outputs}")
    lines += [_tensor_text(value) for value in twin.graph.outputs]
    return "\n".join(lines)


def _tensor_text(value: ir.Value | None) -> str:
    if value is None:
        return "-"
    maker, tensor = value.producer(), constant(value)
    if maker is not None:
        return f"{maker.name}:{value.index()}"
    if tensor is None:
        return f"{value.name} {value.dtype} {value.shape}"
    small = tensor.numpy().tolist() if tensor.size <= _SMALL else ""
    return f"{tensor.dtype} {tensor.shape} {small}"


_SMALL = 64
