"""Take the Q/DQ pairs off activations; what they saturate and what their scale was is kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.passes.found_scales import Mark
from fuseq.passes.matching import constant, is_op
from fuseq.passes.names import fresh, value_names
from fuseq.passes.non_negative import never_negative
from fuseq.passes.quantizers import (
    Quantizer,
    dequantized_values,
    is_dequantize,
    is_quantize,
    read_quantizer,
)
from fuseq.passes.repairs import Repair
from fuseq.passes.splice import new_constant

MOVES_OF_INTEGERS = (
    "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Split",
    "Gather", "Concat", "MaxPool", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Resize",
    "Pad",
)  # fmt: skip
"""Operators that files run on the integers between Q and DQ. Pad fills with 0 on both sides only
where the zero point is 0."""


@dataclasses.dataclass
class Activations:
    """The pass's state: where it is and what it found."""

    graph: ir.Graph
    taken: set[str]
    marks: list[Mark] = dataclasses.field(default_factory=list)
    repairs: list[Repair] = dataclasses.field(default_factory=list)
    floats: dict[ir.Value, ir.Value] = dataclasses.field(default_factory=dict)
    clipped: dict[tuple[ir.Value, float], ir.Value] = dataclasses.field(default_factory=dict)


def strip_activations(model: ir.Model) -> tuple[list[Mark], list[Repair]]:
    """Let the readers of every DequantizeLinear of an activation read the float tensor, in place.

    1. Q -> DQ with one scale: the readers read what Q reads.
    2. Q -> operators that move integers -> DQ: the operators move the float tensor.
    3. A quantizer from 0 up (zero point at the lowest integer) also did the work of a Relu or Clip
       that the tool dropped, as ONNX Runtime's does; unless the tensor cannot be negative, a Clip
       to the stored range is put in its place.
    4. A scale that is 0, negative, NaN or infinite, or computed at run time: see the repairs.
    5. A model's input or output of integers keeps its DQ or Q: it is what callers see.
    6. A stored table whose rows are gathered before DQ (an embedding) becomes a float table.
    """
    state = Activations(model.graph, value_names(model))
    for node in list(model.graph):
        if is_dequantize(node) and not _is_of_constant(node):
            _strip(state, node)
    return state.marks, state.repairs


def _is_of_constant(node: ir.Node) -> bool:
    stored = node.inputs[0]
    if constant(stored) is not None:
        return True
    maker = stored.producer() if stored is not None else None
    return is_quantize(maker) and maker is not None and constant(maker.inputs[0]) is not None


def _strip(state: Activations, node: ir.Node) -> None:
    by, stored = read_quantizer(node), node.inputs[0]
    out, name = node.outputs[0], node.name or ""
    if isinstance(by, str) or stored is None:
        _leave(state, node, by if isinstance(by, str) else "it reads nothing")
        return
    names: list[str] = []
    source = _float_source(state, stored, by, names)
    if isinstance(source, str):
        _leave(state, node, source)
        return
    names.append(name)
    if by.problem:
        text = f"{by.problem} ({', '.join(names)}); the pair is dropped and the tensor has no scale"
        state.repairs.append(Repair("bad scale", source.name or "", tuple(names), text))
    else:
        source = saturated(state, source, by, names)
    readers = tuple((use.node, use.idx) for use in out.uses() if use.node.graph is state.graph)
    numbers = tuple(i for i, value in enumerate(state.graph.outputs) if value is out)
    for number in numbers:
        source = _give_out(state, number, out, source)
    out.replace_all_uses_with(source)
    state.graph.remove(node, safe=True)
    if not by.problem:
        state.marks.append(Mark(by, "activation", source, readers, numbers, tuple(names)))


def _leave(state: Activations, node: ir.Node, why: str) -> None:
    stored = node.inputs[0]
    if stored is not None and stored.is_graph_input():
        why = "the model's input is quantized outside; callers see its type"
    text = f"{node.op_type} {node.name!r} stays: {why}"
    state.repairs.append(Repair("left", node.outputs[0].name or "", (node.name or "",), text))


def _float_source(
    state: Activations, value: ir.Value, by: Quantizer, names: list[str]
) -> ir.Value | str:
    """The float tensor that the integers of ``value`` stand for, or why there is none."""
    if value in state.floats:
        return state.floats[value]
    node = value.producer()
    if node is None:
        return _table(state, value, by)
    if is_quantize(node):
        names.append(node.name or "")
        return _read_by(node, by)
    if not is_op(node, *MOVES_OF_INTEGERS):
        return f"{node.op_type} {node.name!r} before it computes on integers"
    if is_op(node, "Pad") and by.zero_point.any():
        return f"Pad {node.name!r} fills with another value than the zero point"
    if by.axis is not None:
        return f"{node.op_type} {node.name!r} moves a tensor with a scale a channel"
    return _moved(state, node, value, by, names)


def _table(state: Activations, value: ir.Value, by: Quantizer) -> ir.Value | str:
    """Case 6."""
    tensor = constant(value)
    if tensor is None:
        return "nobody in the file quantizes what it reads"
    name = (value.name or "table").removesuffix("_quantized")
    array = dequantized_values(tensor.numpy(), by)
    state.floats[value] = new_constant(state.graph, name, array, state.taken)
    return state.floats[value]


def _read_by(quantize: ir.Node, by: Quantizer) -> ir.Value | str:
    """What ``quantize`` reads, if its scale is the one of the DequantizeLinear behind it."""
    made = read_quantizer(quantize)
    if isinstance(made, str):
        return made
    if not dataclasses.replace(made, stored=by.stored).equals(by):
        return f"its scale is not that of {quantize.name!r} before it"
    return quantize.inputs[0] if quantize.inputs[0] is not None else "Q reads nothing"


def _moved(
    state: Activations, node: ir.Node, value: ir.Value, by: Quantizer, names: list[str]
) -> ir.Value | str:
    """Case 2: a copy of ``node`` that moves floats; the old one dies when nobody reads it."""
    inputs = list(node.inputs)
    for index in range(len(inputs) if node.op_type == "Concat" else 1):
        each = inputs[index]
        source = _float_source(state, each, by, names) if each is not None else "no input"
        if isinstance(source, str):
            return source
        inputs[index] = source
    attributes = list(node.attributes.values())
    copy = ir.Node(
        "", node.op_type, inputs, attributes, num_outputs=len(node.outputs),
        name=f"{node.name}_float", metadata_props=dict(node.metadata_props),
    )  # fmt: skip
    first = inputs[0]
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name = fresh(f"{old.name}_float", state.taken)
        new.shape = old.shape
        new.type = first.type if first is not None else None
        state.floats[old] = new
    state.graph.insert_after(node, copy)
    return state.floats[value]


def saturated(state: Activations, source: ir.Value, by: Quantizer, names: list[str]) -> ir.Value:
    """Case 3 of :func:`strip_activations`: ``source``, or a Clip of it to the stored range."""
    if (by.zero_point > by.qmin).any() or by.format.startswith("fp8"):
        return source
    high = float(np.float32(((by.qmax - by.zero_point) * by.scale.astype(np.float64)).max()))
    known = state.clipped.get((source, high))
    if known is not None:
        return known
    if never_negative(source):
        return source
    low_value, high_value = (
        new_constant(
            state.graph, f"{source.name}_{end}", np.asarray(number, np.float32), state.taken
        )
        for end, number in (("lowest", 0.0), ("highest", high))
    )
    clip = ir.node("Clip", [source, low_value, high_value], name=f"{source.name}_clip")
    out = clip.outputs[0]
    out.name = fresh(f"{source.name}_clipped", state.taken)
    out.type, out.shape = source.type, source.shape
    maker = source.producer()
    if maker is not None and maker.graph is state.graph:
        clip.metadata_props.update(maker.metadata_props)
        state.graph.insert_after(maker, clip)
    else:
        state.graph.insert_before(state.graph[0], clip)
    state.clipped[source, high] = out
    text = (
        f"its quantizer cuts below 0, which stood for a Relu or Clip that the tool had dropped; "
        f"a Clip to [0, {high:.6g}] stands there now"
    )
    state.repairs.append(Repair("saturation", out.name, tuple(names), text))
    return out


def _give_out(state: Activations, number: int, out: ir.Value, source: ir.Value) -> ir.Value:
    """Make ``source`` output ``number`` of the model, under the name that callers know."""
    name = out.name
    if source.is_graph_output() or source.is_graph_input() or source.is_initializer():
        node = ir.node("Identity", [source], name=f"{name}_identity")
        node.outputs[0].type, node.outputs[0].shape = out.type, out.shape
        state.graph.append(node)
        source = node.outputs[0]
    out.name = None
    source.name = name
    state.graph.outputs[number] = source
    return source
