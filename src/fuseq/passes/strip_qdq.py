"""From any tool's quantized model to a float one, with every scale kept at its tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.passes.casts import remove_float_casts
from fuseq.passes.clean import fold_constants, lift_constants, lift_constants_again
from fuseq.passes.dynamic_quantize import dynamic_to_float
from fuseq.passes.fake_quantize import fake_quantize_to_pairs
from fuseq.passes.fold_affine import fold_affine
from fuseq.passes.fold_value_scale import fold_value_scales
from fuseq.passes.found_scales import FoundScale, Mark, settle
from fuseq.passes.matching import constant, made_by
from fuseq.passes.names import fix_names
from fuseq.passes.no_ops import remove_no_ops
from fuseq.passes.opset import raise_opset
from fuseq.passes.private_qdq import standard_qdq
from fuseq.passes.qoperators import qoperators_to_pairs
from fuseq.passes.quantizer_constants import fold_quantizer_constants
from fuseq.passes.quantizers import is_dequantize, is_quantize
from fuseq.passes.repairs import Repair
from fuseq.passes.shapes import infer_shapes
from fuseq.passes.strip_activations import strip_activations
from fuseq.passes.strip_weights import strip_weights
from fuseq.passes.typing import set_precision
from fuseq.passes.weight_chains import resolve_weights

_FIRST_OPSET_WITH_AXIS = 13

_SPELLINGS: tuple[Callable[[ir.Model], list[Repair]], ...] = (
    standard_qdq,
    qoperators_to_pairs,
    fake_quantize_to_pairs,
    dynamic_to_float,
)
"""Every other way of writing quantization becomes Q/DQ before anything is taken away."""


@dataclasses.dataclass(frozen=True)
class Stripped:
    """What was taken off a quantized model.

    Attributes:
        marks: Every scale of the file with its readers, to be settled on names when needed.
        repairs: What was mended, and what could not be.
        pairs: Names of the Q/DQ nodes that the file had, once every spelling was Q/DQ.
        keep_fp32: Names of nodes that compute in FP32 in a file that is FP16 or BF16 elsewhere.
        notes: Sentences of the passes before (opset, subgraphs).
        reach: What the file's FP8 activations fill of their range, where they change their format.
    """

    marks: tuple[Mark, ...]
    repairs: tuple[Repair, ...]
    pairs: tuple[str, ...]
    keep_fp32: frozenset[str]
    notes: tuple[str, ...]
    reach: float = 1.0

    def scales(self, model: ir.Model) -> tuple[FoundScale, ...]:
        """The scales by the names that their tensors have in ``model`` now."""
        found = settle(model.graph, list(self.marks))
        if self.reach == 1:
            return found
        return tuple(
            dataclasses.replace(each, reach=self.reach) if each.by.format == "fp8" else each
            for each in found
        )


def strip_qdq(model: ir.Model, *, folds: bool = True) -> Stripped:
    """Change ``model`` in place into a float model of FP32, without Q/DQ.

    1. Constants are lifted, the opset raised, names made unique; QOperator, private, written-out and
       run-time quantization become Q/DQ.
    2. Activations are stripped (:func:`fuseq.passes.strip_activations.strip_activations`).
    3. The whole graph becomes FP32, so that a Half scale beside a Float tensor means one thing.
       Inputs and outputs of the model keep their types.
    4. What constants alone compute is folded; with ``folds`` also weight chains, and
       BatchNormalization and constant factors fold into the weights while these still have their
       scales, which are multiplied along (``fold_affine``, case 4; ``fold_value_scale``).
    5. Weights and biases are stripped (:func:`fuseq.passes.strip_weights.strip_weights`).

    The float model computes what the quantized one does but for the rounding of activations.

    Raises:
        ModelError: The graph cannot be brought to the needed opset or simplified.
    """
    notes = [*lift_constants(model), *raise_opset_with_axes(model)]
    fix_names(model)
    fold_quantizer_constants(model)
    repairs = [repair for spelling in _SPELLINGS for repair in spelling(model)]
    infer_shapes(model)
    pairs = tuple(n.name or "" for n in model.graph if is_quantize(n) or is_dequantize(n))
    keep_fp32 = _fp32_islands(model)
    remove_float_casts(model)
    marks, mended = strip_activations(model)
    set_precision(model, "fp32")
    marks = _at_outputs(marks, _drop_idle_casts(model.graph))
    common.RemoveUnusedNodesPass()(model)
    steps = (fold_constants, resolve_weights, infer_shapes, remove_no_ops, fold_affine)
    for step in steps if folds else steps[:1]:
        notes += step(model)
    if folds:
        fold_value_scales(model, [mark.value for mark in marks])
    weights, mended_weights = strip_weights(model)
    common.RemoveUnusedNodesPass()(model)
    infer_shapes(model)
    found = (*repairs, *mended, *mended_weights)
    return Stripped((*marks, *weights), found, pairs, keep_fp32, tuple(notes))


def raise_opset_with_axes(model: ir.Model) -> list[str]:
    """Raise the opset in place; scales a channel in a file below opset 13 get the axis that was meant.

    Raises:
        ModelError: A node has no conversion.
    """
    old_axes = _axes_below_13(model)
    notes = [*raise_opset(model), *lift_constants_again(model)]
    for node in model.graph:
        if node.name in old_axes:
            node.attributes["axis"] = ir.AttrInt64("axis", old_axes[node.name])
    return notes


def _axes_below_13(model: ir.Model) -> dict[str, int]:
    """Channel axis by name of Q/DQ node, for scales a channel in a file whose opset has no axis.

    Tools wrote such files for the output channels of a weight: axis 0 of Conv, 1 of the others.
    """
    version = model.opset_imports.get("")
    found: dict[str, int] = {}
    if version is None or version >= _FIRST_OPSET_WITH_AXIS:
        return found
    fix_names(model)
    for node in model.graph:
        tensor = constant(node.inputs[1]) if is_dequantize(node) else None
        if tensor is None or tensor.size == 1 or "axis" in node.attributes:
            continue
        readers = {use.node.op_type for use in node.outputs[0].uses()}
        axis = 0 if readers == {"Conv"} else 1
        maker = made_by(node.inputs[0], "QuantizeLinear")
        for each in (node, maker):
            if each is not None:
                found[each.name or ""] = axis
    return found


def _drop_idle_casts(graph: ir.Graph) -> dict[ir.Node, int]:
    """A Cast that gives an output its type, and has nothing to do now, hands its name on.

    Returns:
        The number of the output by removed Cast.
    """
    removed: dict[ir.Node, int] = {}
    for number, value in enumerate(graph.outputs):
        cast = made_by(value, "Cast")
        source = cast.inputs[0] if cast is not None else None
        if cast is None or source is None or source.dtype != value.dtype:
            continue
        if source.producer() is None or source.is_graph_output():
            continue
        name = value.name
        graph.outputs[number] = source
        value.replace_all_uses_with(source)
        graph.remove(cast, safe=True)
        source.name = name
        removed[cast] = number
    return removed


def _at_outputs(marks: list[Mark], removed: dict[ir.Node, int]) -> list[Mark]:
    """A scale whose reader was such a Cast is one of the model's output."""
    return [
        dataclasses.replace(
            mark,
            readers=tuple(use for use in mark.readers if use[0] not in removed),
            outputs=(*mark.outputs, *(removed[n] for n, _ in mark.readers if n in removed)),
        )
        for mark in marks
    ]


def _fp32_islands(model: ir.Model) -> frozenset[str]:
    """Nodes that a tool kept in FP32 beside a majority of 16 bits: it had its reasons."""
    halves, floats = 0, set()
    for node in model.graph:
        if node.op_type == "Cast" or is_quantize(node) or is_dequantize(node):
            continue
        values = (*node.inputs[:1], *node.outputs[:1])
        types = {value.dtype for value in values if value is not None}
        if types == {ir.DataType.FLOAT}:
            floats.add(node.name or "")
        elif types & {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}:
            halves += 1
    return frozenset(floats) if halves > len(floats) else frozenset()
