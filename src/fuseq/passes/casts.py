"""Casts between float types: all old ones go, new ones stand only where an island begins or ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from fuseq.passes.convert_weights import converted
from fuseq.passes.float_slots import is_float
from fuseq.passes.names import fresh, value_names

SHORT = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "fp64",
}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Input ``index`` of ``node`` must be of type ``dtype``."""

    node: ir.Node
    index: int
    dtype: ir.DataType


def remove_float_casts(model: ir.Model) -> None:
    """Let the readers of every Cast from float to float read its input instead.

    Which type a reader computes in is decided afterwards; a Cast that gives a graph output stays,
    because the output must keep its name.
    """
    for node in list(model.graph):
        if node.op_type != "Cast" or node.domain != "" or node.inputs[0] is None:
            continue
        if not (is_float(node.inputs[0]) and is_float(node.outputs[0])):
            continue
        if any(user.graph is not model.graph for user in node.outputs[0].consumers()):
            continue  # a subgraph reads it: its type is not ours to change
        for user, index in list(node.outputs[0].uses()):
            user.replace_input_with(index, node.inputs[0])
        if not node.outputs[0].is_graph_output():
            model.graph.remove(node, safe=True)


def insert_casts(model: ir.Model, wanted: Sequence[Wanted]) -> None:
    """Give every reader its type: weights are converted, other values get one Cast per type."""
    taken = value_names(model)
    by_value: dict[ir.Value, dict[ir.DataType, list[Wanted]]] = {}
    for want in wanted:
        value = want.node.inputs[want.index]
        if value is not None:
            by_value.setdefault(value, {}).setdefault(want.dtype, []).append(want)
    for value, by_type in by_value.items():
        if _is_weight(value):
            sources = _weights(model.graph, value, list(by_type), taken)
        else:
            others = [dtype for dtype in by_type if dtype != value.dtype]
            sources = {dtype: _cast(model.graph, value, dtype, taken) for dtype in others}
        for dtype, source in sources.items():
            for want in by_type[dtype]:
                want.node.replace_input_with(want.index, source)


def cast_outputs(model: ir.Model, types: Sequence[ir.DataType | None]) -> None:
    """Put a Cast before every graph output whose type is not the wanted one (None: any).

    The output keeps its name; the value before the Cast gets a fresh one.
    """
    taken = value_names(model)
    for position, (value, dtype) in enumerate(zip(model.graph.outputs, types, strict=True)):
        if dtype is None or value.dtype == dtype or not is_float(value):
            continue
        name = value.name or ""
        value.name = fresh(f"{name}_{SHORT[value.dtype or ir.DataType.FLOAT]}", taken)
        out = _cast(model.graph, value, dtype, taken)
        out.name = name
        model.graph.outputs[position] = out


def _is_weight(value: ir.Value) -> bool:
    return value.is_initializer() and value.const_value is not None and not value.is_graph_output()


def _weights(
    graph: ir.Graph, value: ir.Value, dtypes: list[ir.DataType], taken: set[str]
) -> dict[ir.DataType, ir.Value]:
    """One initializer per type; the first type (the old one, where it is wanted) keeps the name."""
    tensor = value.const_value
    if tensor is None:
        return {}
    first = tensor.dtype if tensor.dtype in dtypes else dtypes[0]
    made = {first: value}
    for dtype in dtypes:
        if dtype == first:
            continue
        name = fresh(f"{value.name}_{SHORT[dtype]}", taken)
        made[dtype] = ir.Value(
            name=name,
            type=ir.TensorType(dtype),
            shape=value.shape,
            const_value=converted(tensor, dtype),
        )
        graph.register_initializer(made[dtype])
    value.const_value, value.type = converted(tensor, first), ir.TensorType(first)
    return made


def _cast(graph: ir.Graph, value: ir.Value, dtype: ir.DataType, taken: set[str]) -> ir.Value:
    maker = value.producer()
    name = fresh(f"{value.name}_{SHORT[dtype]}", taken)
    out = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
    near = maker if maker is not None else next(iter(value.uses())).node
    node = ir.node(
        "Cast",
        [value],
        {"to": int(dtype)},
        outputs=[out],
        name=f"Cast_{name}",
        metadata_props=dict(near.metadata_props),
    )
    if maker is not None:
        graph.insert_after(maker, node)
    else:
        graph.insert_before(graph[0], node)
    return out
