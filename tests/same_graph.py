"""Tell whether two models are one graph up to names: operators, attributes, edges, constants bit by bit."""

from __future__ import annotations

import hashlib

import onnx_ir as ir


def signature(model: ir.Model) -> dict[str, str]:
    """A digest by output name of all that the output is computed from."""
    known: dict[ir.Value, str] = {}
    for value in model.graph.inputs:
        known[value] = _digest("input", value.name, value.dtype, value.shape)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None
        known[value] = _digest("constant", tensor.dtype, tensor.shape, tensor.tobytes())
    for node in model.graph:
        attributes = sorted((a.name, str(a.value)) for a in node.attributes.values())
        inputs = [known[value] if value is not None else "" for value in node.inputs]
        for number, value in enumerate(node.outputs):
            known[value] = _digest(
                node.domain, node.op_type, attributes, inputs, number, value.dtype
            )
    return {value.name or "": known[value] for value in model.graph.outputs}


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
