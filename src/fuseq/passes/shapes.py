"""Types and shapes of every value, symbolic for the file and concrete for one choice of inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.passes.clean import FOLD_INPUT_ELEMENTS, FOLD_OUTPUT_ELEMENTS
from fuseq.passes.open_sizes import fill_open_sizes, size_of


def infer_shapes(model: ir.Model) -> list[str]:
    """Write dtype and shape on every value where they can be known.

    Weights do not travel to the inference, so models over 2 GiB work; small constants do, because
    Reshape and Slice need their values.

    1. onnx infers the whole graph anew from its inputs: a size that an exporter left open would
       otherwise stay open. What only the exporter knew is kept.
    2. Sizes that onnx lost are filled in one sweep (see ``fill_open_sizes``).
    """
    inside = [v for node in model.graph for v in node.outputs if not v.is_graph_output()]
    before = {value: value.shape for value in inside}
    for value in inside:
        value.shape = None
    common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    for value in inside:
        value.shape = _merged(value.shape, before[value])
    fill_open_sizes(model)
    return []


def _merged(new: ir.Shape | None, old: ir.Shape | None) -> ir.Shape | None:
    if new is None or old is None or len(new) != len(old):
        return new if new is not None else old
    sizes = [(size_of(a), size_of(b)) for a, b in zip(new, old, strict=True)]
    return ir.Shape([there if here is None else here for here, there in sizes])


def static_shapes(
    model: ir.Model, inputs: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the concrete shape of every value of the main graph for given input shapes.

    Args:
        model: Read only; its own symbolic shapes stay.
        inputs: Shape per input name, for all inputs with symbols.

    Returns:
        Shape per value name, initializers included; values whose shape depends on data are absent.
    """
    from onnxscript.optimizer import _constant_folding  # noqa: PLC0415 (imports onnx.reference)

    copy = model.clone()
    values = [value for node in copy.graph for value in node.outputs]
    names = [value.name or "" for value in values]
    for value in values:
        value.shape = None
    for value in copy.graph.inputs:
        if (value.name or "") in inputs:
            value.shape = ir.Shape(inputs[value.name or ""])
    fold = _constant_folding.FoldConstantsPass(
        shape_inference=True,
        input_size_limit=FOLD_INPUT_ELEMENTS,
        output_size_limit=FOLD_OUTPUT_ELEMENTS,
    )
    fold(copy)
    known = dict(zip(names, map(_concrete, values), strict=True))
    known.update({value.name or "": _concrete(value) for value in copy.graph.inputs})
    for name, value in model.graph.initializers.items():
        known[name] = _concrete(value)
    return {name: shape for name, shape in known.items() if shape is not None}


def _concrete(value: ir.Value) -> tuple[int, ...] | None:
    shape = value.const_value.shape if value.const_value is not None else value.shape
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return tuple(int(dim) for dim in shape)  # type: ignore[arg-type]
