"""Give the graph one compute type, so that a strongly typed compiler takes it at the first try."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import onnx_ir as ir

from fuseq.errors import OptionError
from fuseq.passes.casts import Wanted, cast_outputs, insert_casts, remove_float_casts
from fuseq.passes.compute_types import compute_types
from fuseq.passes.float_slots import Slots, is_float, slots_of
from fuseq.passes.islands import Why, fp32_nodes
from fuseq.passes.notes import Note
from fuseq.passes.opset import BFLOAT16_OPSET, raise_to
from fuseq.passes.retype import retype_node
from fuseq.passes.subgraphs import holds_graphs

PRECISIONS: Mapping[str, ir.DataType] = {
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "fp32": ir.DataType.FLOAT,
}

_NOTED_NODES = 6


def set_precision(
    model: ir.Model,
    precision: str,
    *,
    io_types: Literal["keep", "convert"] = "keep",
    magnitudes: Mapping[str, float] | None = None,
    keep_fp32: Collection[str] = (),
) -> list[Note]:
    """Change ``model`` in place so that every operator of the main graph sees one float type.

    Args:
        model: Canonical (constants are initializers, types are known); Q/DQ may be in it.
        precision: ``fp16``, ``bf16`` or ``fp32``, the type of everything but the islands.
        io_types: ``keep``: inputs and outputs of the graph keep their types behind Casts;
            ``convert``: they take ``precision`` too.
        magnitudes: Largest magnitude per value name, from calibration; without it only
            constants and operators decide what stays FP32.
        keep_fp32: Names of nodes that compute in FP32 whatever the ranges say.

    Returns:
        Notes on what stays FP32 and why, and on constants that were clamped.

    Raises:
        OptionError: ``precision`` is none of the three, or ``keep_fp32`` names no node.
    """
    dtype = _dtype_named(precision)
    _check_names(model, keep_fp32)
    if dtype == ir.DataType.BFLOAT16:
        raise_to(model, BFLOAT16_OPSET)
    before = _types_before(model)
    remove_float_casts(model)
    slots = {node: slots_of(node, model.opset_imports.get("", 0)) for node in model.graph}
    why: Why = {}
    if dtype != ir.DataType.FLOAT:
        why = fp32_nodes(model, dtype, slots, magnitudes or {}, keep_fp32)
    types = compute_types(model, dtype, slots, why)
    for node in model.graph:
        retype_node(node, slots[node], types[node])
    if io_types == "convert":
        _convert_inputs(model, dtype)
    insert_casts(model, _wanted(model, slots, types, before))
    cast_outputs(
        model,
        [dtype if io_types == "convert" else before.get(value) for value in model.graph.outputs],
    )
    return [*_notes(why, dtype), *_untouched(slots)]


def _dtype_named(precision: str) -> ir.DataType:
    if precision not in PRECISIONS:
        raise OptionError(
            f"--precision {precision!r} is not a precision; choose one of {', '.join(PRECISIONS)}."
        )
    return PRECISIONS[precision]


def _check_names(model: ir.Model, names: Collection[str]) -> None:
    unknown = sorted(set(names) - {node.name for node in model.graph if node.name})
    if unknown:
        raise OptionError(f"no node is called {unknown[0]!r}; it cannot be kept in FP32.")


def _types_before(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    values = {*model.graph.inputs, *model.graph.initializers.values(), *model.graph.outputs}
    values |= {value for node in model.graph for value in node.outputs}
    return {value: value.dtype for value in values if value.dtype is not None}


def _convert_inputs(model: ir.Model, dtype: ir.DataType) -> None:
    for value in model.graph.inputs:
        if is_float(value):
            value.type = ir.TensorType(dtype)  # clones share type objects


def _wanted(
    model: ir.Model,
    slots: Mapping[ir.Node, Slots],
    types: Mapping[ir.Node, ir.DataType],
    before: Mapping[ir.Value, ir.DataType],
) -> list[Wanted]:
    """List what every float input must be; operators left as they are want what they had."""
    wanted = []
    for node in model.graph:
        here = slots[node]
        for index in here.inputs:
            value = node.inputs[index]
            if value is not None:
                wanted.append(Wanted(node, index, before[value] if here.as_is else types[node]))
        wanted += [Wanted(node, index, fixed) for index, fixed in here.fixed_inputs]
    for node in _nodes_of_subgraphs(model):
        for index, value in enumerate(node.inputs):
            if value is not None and value in before and is_float(value):
                wanted.append(Wanted(node, index, before[value]))
    return wanted


def _nodes_of_subgraphs(model: ir.Model) -> list[ir.Node]:
    return [node for graph in model.graphs() if graph is not model.graph for node in graph]


def _untouched(slots: Mapping[ir.Node, Slots]) -> list[Note]:
    """One note about operators whose types are not known to ONNX."""
    found = [node for node, here in slots.items() if here.as_is and not holds_graphs(node)]
    if not found:
        return []
    kinds = sorted({f"{node.domain or 'ai.onnx'}.{node.op_type}" for node in found})
    text = f"{', '.join(kinds)}: ONNX does not know the types, so these {len(found)} nodes keep theirs."
    return [Note(text, tuple(node.name or node.op_type for node in found))]


def _notes(why: Why, dtype: ir.DataType) -> list[Note]:
    """One note per reason, with all its nodes and the first of them in words."""
    by_reason: dict[str, list[str]] = {}
    for node, reason in why.items():
        by_reason.setdefault(reason, []).append(node.name or node.op_type)
    notes = []
    for reason, names in by_reason.items():
        shown = ", ".join(names[:_NOTED_NODES])
        more = f" and {len(names) - _NOTED_NODES} more" if len(names) > _NOTED_NODES else ""
        notes.append(
            Note(f"{shown}{more}: FP32, not {dtype.name}, because {reason}.", tuple(names))
        )
    return notes
