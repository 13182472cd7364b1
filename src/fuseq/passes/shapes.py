"""Types and shapes of every value, symbolic for the file and concrete for one choice of inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.passes.clean import FOLD_INPUT_ELEMENTS, FOLD_OUTPUT_ELEMENTS

_INVENTED = "unk__"
"""Prefix of the symbols that ONNX shape inference makes up for sizes that it cannot derive."""

_ROUNDS = 3


def infer_shapes(model: ir.Model) -> list[str]:
    """Write dtype and shape on every value where ONNX shape inference knows them.

    Weights do not travel to the inference, so models over 2 GiB work; small constants do, because
    Reshape and Slice need their values. Shapes are inferred from the inputs anew: a size that an
    exporter left open would otherwise stay open. What only the exporter knew is kept, and the
    inference repeated with it, because ONNX loses a batch size at ``Reshape(x, [-1, ...])``.
    """
    inside = [v for node in model.graph for v in node.outputs if not v.is_graph_output()]
    before = {value: value.shape for value in inside}
    unsure = inside
    for _ in range(_ROUNDS):
        for value in unsure:
            value.shape = None
        common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
        for value in inside:
            value.shape = _merged(value.shape, before[value])
        still = [value for value in unsure if not _is_sure(value.shape)]
        if len(still) in (0, len(unsure)):
            break
        unsure = still
    return []


def _is_sure(shape: ir.Shape | None) -> bool:
    return shape is not None and all(_known(dim) is not None for dim in shape)


def _merged(new: ir.Shape | None, old: ir.Shape | None) -> ir.Shape | None:
    if new is None or old is None or len(new) != len(old):
        return new if new is not None else old
    return ir.Shape([_first_known(a, b) for a, b in zip(new, old, strict=True)])


def _first_known(new: int | ir.SymbolicDim, old: int | ir.SymbolicDim) -> int | str | None:
    known = _known(new)
    return _known(old) if known is None else known


def _known(dim: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(dim, int):
        return dim
    return None if dim.value is None or dim.value.startswith(_INVENTED) else dim.value


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
