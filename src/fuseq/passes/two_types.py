"""Find nodes that see two float types; a strongly typed compiler refuses them."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.float_slots import slots_of
from fuseq.passes.quantizers import is_dequantize, is_quantize
from fuseq.passes.wide_scales import WIDE_SCALE_OPSET


def two_type_nodes(model: ir.Model) -> list[str]:
    """Return a sentence for every node of the main graph that mixes float types; reads only."""
    return [
        f"{node.op_type} {node.name!r} sees two float types: {listed}."
        for node, listed in nodes_of_two_types(model)
    ]


def nodes_of_two_types(model: ir.Model) -> list[tuple[ir.Node, str]]:
    """Return every node of the main graph that mixes float types, and its slots in words; reads only.

    Slots whose type the operator fixes, Casts, and operators that are not known are not mixtures.
    QuantizeLinear is judged by tensor and scale, DequantizeLinear by scale and output; from opset 23 on
    their scale has a type of its own.
    """
    opset = model.opset_imports.get("", 0)
    found: list[tuple[ir.Node, str]] = []
    for node in model.graph:
        slots = slots_of(node, opset)
        if node.op_type in ("Cast", "CastLike") or slots.as_is or _has_own_type(node, opset):
            continue
        seen = {f"input {i}": node.inputs[i] for i in slots.inputs}
        seen |= {f"output {i}": node.outputs[i] for i in slots.outputs}
        types = {where: value.dtype for where, value in seen.items() if value is not None}
        if len(set(types.values())) > 1:
            listed = ", ".join(f"{where} {dtype}" for where, dtype in types.items())
            found.append((node, listed))
    return found


def _has_own_type(node: ir.Node, opset: int) -> bool:
    return opset >= WIDE_SCALE_OPSET and (is_quantize(node) or is_dequantize(node))
