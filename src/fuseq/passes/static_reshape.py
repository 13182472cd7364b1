"""A Reshape whose target is computed at run time takes a constant where the shapes allow it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, is_op
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant
from fuseq.passes.symbolic_dims import Dim, shape_elements, value_dims


def make_reshapes_static(model: ir.Model) -> list[str]:
    """Replace computed targets of Reshape by constants; the shape arithmetic behind them dies.

    An axis of static size is that size; an axis that has the size of the same axis of the input is
    0, which copies it; one axis more may be -1. With two such axes the Reshape stays.
    """
    taken = value_names(model)
    for node in model.graph:
        if not is_op(node, "Reshape") or constant(node.inputs[1]) is not None:
            continue
        target = _target(node)
        if target is None:
            continue
        name = f"{node.outputs[0].name}_shape"
        shape = new_constant(model.graph, name, np.asarray(target, np.int64), taken)
        node.replace_input_with(1, shape)
        node.attributes.pop("allowzero", None)
    return []


def _target(node: ir.Node) -> list[int] | None:
    source, output = node.inputs[0], node.outputs[0]
    if source is None or output.shape is None or 0 in output.shape:
        return None
    told = shape_elements(node.inputs[1])
    target = [_axis(axis, dim, source, told) for axis, dim in enumerate(output.shape)]
    return target if target.count(-1) <= 1 else None


def _axis(
    axis: int, dim: int | ir.SymbolicDim, source: ir.Value, told: Sequence[Dim] | None
) -> int:
    if isinstance(dim, int):
        return dim
    before = value_dims(source) or []
    if axis >= len(before) or source.shape is None:
        return -1
    same = source.shape[axis]
    named = not isinstance(same, int) and dim.value is not None and same.value == dim.value
    copied = told is not None and len(told) > axis and told[axis] == before[axis]
    return 0 if named or copied else -1
