"""Softmax of opset 12 and older, converted through a flattened tensor, becomes one Softmax."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.matching import integer_attribute, is_op, made_by, only_reader
from fuseq.passes.splice import replace
from fuseq.passes.symbolic_dims import same_shape


def merge_flat_softmaxes(model: ir.Model) -> list[str]:
    """Rewrite Flatten(axis = last) -> Softmax(-1) -> Reshape(old shape) into Softmax(-1).

    Softmax-11 flattens everything from its axis on; over the last axis that is Softmax-13. The
    converter of onnx writes the long form where it does not see the rank.
    """
    for last in list(model.graph):
        softmax = made_by(last.inputs[0], "Softmax") if is_op(last, "Reshape") else None
        flat = made_by(softmax.inputs[0], "Flatten") if softmax is not None else None
        source = flat.inputs[0] if flat is not None else None
        if softmax is None or flat is None or source is None or source.shape is None:
            continue
        if integer_attribute(softmax, "axis", -1) not in (-1, 1):
            continue
        if integer_attribute(flat, "axis", 1) % len(source.shape) != len(source.shape) - 1:
            continue
        alone = only_reader(flat.outputs[0]) is softmax and only_reader(softmax.outputs[0]) is last
        if alone and same_shape(source, last.outputs[0]):
            merged = ir.node("Softmax", [source], {"axis": -1}, name=softmax.name)
            replace(model.graph, [flat, softmax, last], [merged], last.outputs, merged.outputs)
    return []
