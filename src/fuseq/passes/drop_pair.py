"""Take one Q/DQ pair away, or all that one layer reads, and leave the rest of the file as it is."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant
from fuseq.passes.names import fresh
from fuseq.passes.non_negative import never_negative
from fuseq.passes.quantizers import (
    Quantizer,
    dequantized_values,
    is_dequantize,
    is_quantize,
    quantized_values,
    read_quantizer,
)
from fuseq.passes.splice import new_constant


def drop_pair(graph: ir.Graph, dequantize: ir.Node) -> bool:
    """Let every reader of ``dequantize`` read the float tensor, in place.

    1. Q -> DQ of an activation: the readers read what Q reads, behind a Cast where the types differ.
    2. DQ of a constant, or Q -> DQ of one: a constant of the values that the pair gives.
    3. Refused: a quantizer that also cuts below 0 (it stands for a Relu), a pair that is the model's
       output, and one whose scale cannot be read.

    Returns:
        False where it was refused; then nothing is changed.
    """
    out = dequantize.outputs[0]
    if out.is_graph_output():
        return False
    value = float_value(graph, dequantize)
    if value is None:
        return False
    out.replace_all_uses_with(value)
    remove_unread(graph, dequantize)
    return True


def drop_pairs_of(graph: ir.Graph, node: ir.Node) -> list[str]:
    """Let ``node`` alone read its data and weight in float; returns what it read from pairs before."""
    dropped = []
    for index, value in enumerate(node.inputs[:2]):
        if value is None:
            continue
        reader, number, dequantize = _dequantize_before(node, index)
        made = float_value(graph, dequantize) if dequantize is not None else None
        if made is None or dequantize is None:
            continue
        dropped.append(value.name or "")
        reader.replace_input_with(number, made)
        remove_unread(graph, dequantize)
    return dropped


def float_value(graph: ir.Graph, dequantize: ir.Node) -> ir.Value | None:
    """The float tensor behind a DequantizeLinear: what Q reads, or a new constant; None if there is none."""
    by, stored = read_quantizer(dequantize), dequantize.inputs[0]
    if isinstance(by, str) or stored is None or by.problem:
        return None
    maker = stored.producer()
    quantize = maker if is_quantize(maker) else None
    source = quantize.inputs[0] if quantize is not None else stored
    tensor = constant(source)
    if tensor is not None:
        return _constant(graph, dequantize, tensor, by, quantize is not None)
    if quantize is None or source is None or _cuts_below_zero(source, by):
        return None
    return _as_type(graph, source, dequantize)


def remove_unread(graph: ir.Graph, node: ir.Node) -> None:
    """Remove ``node`` and the quantizer before it, as far as nobody reads them."""
    current: ir.Node | None = node
    while current is not None and (is_quantize(current) or is_dequantize(current)):
        out = current.outputs[0]
        if out.uses() or out.is_graph_output():
            return
        source = current.inputs[0]
        graph.remove(current, safe=True)
        current = source.producer() if source is not None else None


def _dequantize_before(node: ir.Node, index: int) -> tuple[ir.Node, int, ir.Node | None]:
    """The DequantizeLinear behind input ``index``, and who reads it: a layout operator may stand between."""
    reader, number = node, index
    while True:
        value = reader.inputs[number]
        maker = value.producer() if value is not None else None
        if maker is None:
            return reader, number, None
        if is_dequantize(maker):
            return reader, number, maker
        if maker.op_type not in ("Transpose", "Reshape", "Identity") or len(value.uses()) != 1:  # type: ignore[union-attr]
            return reader, number, None
        reader, number = maker, 0


def _constant(
    graph: ir.Graph, node: ir.Node, tensor: ir.TensorProtocol, by: Quantizer, is_float: bool
) -> ir.Value:
    values = quantized_values(tensor.numpy(), by) if is_float else tensor.numpy()
    array = dequantized_values(values, by)
    dtype = node.outputs[0].dtype
    if dtype is not None:
        array = array.astype(dtype.numpy())
    source = node.inputs[0]
    name = (source.name if source is not None else None) or "weight"
    taken = value_names_of(graph)
    return new_constant(graph, f"{name.removesuffix('_quantized')}_float", np.asarray(array), taken)


def _cuts_below_zero(source: ir.Value, by: Quantizer) -> bool:
    lowest = (by.zero_point <= by.qmin).all() and not by.format.startswith("fp8")
    return bool(lowest) and not never_negative(source)


def _as_type(graph: ir.Graph, source: ir.Value, dequantize: ir.Node) -> ir.Value:
    out = dequantize.outputs[0]
    if out.dtype is None or source.dtype is None or out.dtype == source.dtype:
        return source
    cast = ir.node("Cast", [source], {"to": int(out.dtype)}, name=f"{dequantize.name}_cast")
    made = cast.outputs[0]
    made.name = fresh(f"{source.name}_cast", value_names_of(graph))
    made.type, made.shape = ir.TensorType(out.dtype), source.shape
    graph.insert_before(dequantize, cast)
    return made


def value_names_of(graph: ir.Graph) -> set[str]:
    """Names of all values of ``graph`` and its subgraphs, for :func:`fuseq.passes.names.fresh`."""
    model_names = {value.name for node in graph.all_nodes() for value in node.outputs}
    return {
        name
        for name in (*model_names, *graph.initializers, *(value.name for value in graph.inputs))
        if name
    }
