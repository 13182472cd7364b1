"""Inlined functions, lifted and folded constants, no identities, no dead nodes: by onnx_ir and onnxscript."""

from __future__ import annotations

import math

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.errors import ModelError
from fuseq.passes.identities import drop_identities
from fuseq.passes.matching import constant, integers, is_op

FOLD_INPUT_ELEMENTS = 8192
"""Operands above this size are weights; folding over them would load and copy them."""

FOLD_OUTPUT_ELEMENTS = 1 << 16
"""A folded result above this size would blow up the file (Expand, Tile, Range of a big tensor)."""

_FILLED_ELEMENTS = 64


def lift_constants(model: ir.Model) -> list[str]:
    """Inline model-local functions, turn Constant nodes into initializers, make initializers constant.

    Files of IR version 3 list initializers as inputs, so that a caller could override them; a
    weight that can change cannot be quantized, so they stop being inputs (with a note when the
    file is newer and the listing was a choice).
    """
    if "ai.onnx" in model.opset_imports:  # another spelling of the default domain
        model.opset_imports[""] = model.opset_imports.pop("ai.onnx")
    before = len(model.graph.inputs)
    _run(
        model,
        common.InlinePass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.RemoveInitializersFromInputsPass(),
    )
    overridable = before - len(model.graph.inputs)
    if overridable and (model.ir_version or 0) > 3:
        return [f"{overridable} inputs have a default in the file and are now constants."]
    return []


def lift_constants_again(model: ir.Model) -> list[str]:
    """Turn Constant nodes that the opset converter wrote (axes, pads, bounds) into initializers."""
    _run(model, common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0))
    return []


def fold_constants(model: ir.Model) -> list[str]:
    """Compute what depends on constants only, within FOLD_INPUT_ELEMENTS and FOLD_OUTPUT_ELEMENTS.

    Casts and shapes whose answer is known are folded too; QuantizeLinear, DequantizeLinear and
    ConstantOfShape stay (the library's own list), and so do values of training mode.
    """
    return _fold(model, infers_shapes=True)


def fold_constants_again(model: ir.Model) -> list[str]:
    """Fold what earlier steps made constant; shapes are known already and are not inferred anew."""
    return _fold(model, infers_shapes=False)


def _fold(model: ir.Model, *, infers_shapes: bool) -> list[str]:
    from onnxscript.optimizer import _constant_folding  # noqa: PLC0415 (imports onnx.reference)

    _run(
        model,
        _constant_folding.FoldConstantsPass(
            shape_inference=infers_shapes,
            input_size_limit=FOLD_INPUT_ELEMENTS,
            output_size_limit=FOLD_OUTPUT_ELEMENTS,
            should_fold=_should_fold,
        ),
    )
    drop_identities(model)
    _run(model, common.RemoveUnusedNodesPass())
    return []


def clean_up(model: ir.Model) -> list[str]:
    """Remove identities, dead nodes, unused initializers, functions and opsets; sort the nodes."""
    drop_identities(model)
    _run(
        model,
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
        common.TopologicalSortPass(),
    )
    return []


def _should_fold(node: ir.Node) -> bool | None:
    """Say yes or no where the library's own rule does not fit, else None.

    1. Pads and shapes are filled by small ConstantOfShape, which the library never folds.
    2. It folds Transpose of a weight of any size; ``resolve_weights`` does that without reading it.
    """
    if is_op(node, "Transpose"):
        weight = constant(node.inputs[0])
        return False if weight is not None and weight.size > FOLD_INPUT_ELEMENTS else None
    if not is_op(node, "ConstantOfShape"):
        return None
    shape = integers(node.inputs[0])
    return True if shape is not None and math.prod(shape) <= _FILLED_ELEMENTS else None


def _run(model: ir.Model, *passes: ir.passes.InPlacePass) -> None:
    for each in passes:
        try:
            each(model)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"the graph could not be simplified ({type(each).__name__}: {error}); check the "
                "file with `python -m onnx.checker` and export it again."
            ) from error
