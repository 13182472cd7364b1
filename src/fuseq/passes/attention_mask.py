"""Attention masks: finite fill values, and no NaN guard behind a softmax that never gives NaN."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import array, constant, is_op, made_by, scalar, split_constant
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant

MASK_FILL = -30000.0
"""What a masked score gets. exp(-30000 + score - max) is 0 in every float type while scores differ
by less than 29,900; two such masks add up to -60,000, which FP16 (largest 65,504) still holds.
-3.4e38 would become -inf in FP16, and a row of -inf gives NaN."""

_MASK_ELEMENTS = 1 << 24
"""A constant causal mask of 4096 x 4096."""

_ADDS = ("Add", "Sum")
_FINITE = ("MatMul", "Gemm", "Einsum", "Conv", "Tanh", "Clip", "DequantizeLinear", "Softmax")
"""Makers of scores; an infinite score would be a fault of the model, not of its mask."""

_CARRIES = ("Reshape", "Unsqueeze", "Squeeze", "Expand", "Slice", "Transpose", "Cast", "Identity")


@dataclasses.dataclass
class Mask:
    """What is added to, or put in the place of, the scores of one softmax.

    Attributes:
        fills: Uses (node, input index) of constants below MASK_FILL.
        constants: Additive constants that reach the softmax directly.
        computed: A mask depends on the model's inputs.
        open_ended: Something arrives whose lower bound is not known, and which is not the scores.
    """

    fills: list[tuple[ir.Node, int]] = dataclasses.field(default_factory=list)
    constants: list[np.ndarray] = dataclasses.field(default_factory=list)
    computed: bool = False
    open_ended: bool = False


def bound_attention_masks(model: ir.Model) -> list[str]:
    """Give every softmax's mask finite fills, and remove the guard that this makes dead.

    1. Constants below MASK_FILL that reach a softmax through Add, Where, ``(1 - mask) * fill`` or
       moves become MASK_FILL. A row with one open position keeps its result: masked positions had
       the weight 0 and have it still.
    2. ``Where(IsNaN(softmax), 0, softmax)`` is what torch exports so that a row that is masked
       everywhere gives 0. With finite scores softmax gives no NaN, and the guard goes:
       TensorRT-RTX does not fuse attention around it.
    3. A row that is masked everywhere now gives a mean over positions. A constant mask is checked
       and never has such a row; for a mask that depends on the inputs the note says so.
    """
    taken = value_names(model)
    finite: dict[ir.Value, ir.Value] = {}
    empties = kept = 0
    for softmax in [node for node in model.graph if is_op(node, "Softmax")]:
        mask = _mask_of(softmax)
        guard = _guard_behind(softmax)
        if guard is not None and mask.open_ended:
            kept += 1
            continue
        for node, index in mask.fills:  # case 1
            _make_finite(model.graph, node, index, finite, taken)
        changes_meaning = bool(mask.fills) or guard is not None
        if changes_meaning and _may_be_empty(mask):  # case 3
            empties += 1
        if guard is not None:  # case 2
            guard.outputs[0].replace_all_uses_with(softmax.outputs[0])
    return list(_notes(empties, kept))


def _notes(empties: int, kept: int) -> Iterator[str]:
    if empties:
        yield (
            f"{empties} attention masks depend on the inputs: a row that is masked everywhere (an "
            "empty sequence) now gives an average instead of 0 or NaN; all other rows are unchanged."
        )
    if kept:
        yield (
            f"{kept} attention softmax keep their NaN guard, because a float mask comes from outside "
            "and may hold -inf; such attention is not fused by TensorRT-RTX. Pass a boolean mask."
        )


def _mask_of(softmax: ir.Node) -> Mask:
    mask = Mask()
    if softmax.inputs[0] is not None:
        _walk_scores(softmax.inputs[0], mask)
    return mask


def _walk_scores(value: ir.Value, mask: Mask) -> None:
    """Walk from the softmax up through the sum of scores and masks."""
    node = value.producer()
    if node is None or node.domain != "":
        mask.open_ended |= constant(value) is None
    elif node.op_type in _ADDS:
        for index, term in enumerate(node.inputs):
            _walk_term(node, index, term, mask)
    elif node.op_type == "Where":
        _walk_where(node, mask)
    elif node.op_type in ("Mul", "Div"):
        parts = split_constant(node)
        if parts is None:
            mask.open_ended = True
        else:
            _walk_scores(parts[0], mask)
    elif node.op_type in _CARRIES and node.inputs[0] is not None:
        _walk_scores(node.inputs[0], mask)
    elif node.op_type not in _FINITE:
        mask.open_ended = True


def _walk_term(node: ir.Node, index: int, term: ir.Value | None, mask: Mask) -> None:
    if term is None:
        return
    if _is_scores(term):
        _walk_scores(term, mask)
    else:
        _walk_mask(node, index, mask)


def _is_scores(value: ir.Value) -> bool:
    """A term that comes from a product of Q and K, however scaled or masked already."""
    node = value.producer()
    if node is not None and node.domain == "":
        if node.op_type in _FINITE:
            return True
        if node.op_type not in (*_ADDS, "Where", "Mul", "Div", *_CARRIES):
            return False
        return any(_is_scores(each) for each in node.inputs if each is not None)
    return False


def _walk_where(node: ir.Node, mask: Mask) -> None:
    """``Where(allowed, scores, fill)``, as masked_fill is exported, in either order."""
    _judge_condition(node, mask)
    for index in (1, 2):
        _walk_term(node, index, node.inputs[index], mask)


def _judge_condition(node: ir.Node, mask: Mask) -> None:
    """Note a constant condition with scalar branches as the additive mask that it amounts to."""
    condition = array(node.inputs[0], _MASK_ELEMENTS)
    if condition is None:
        mask.computed = True
        return
    yes, no = scalar(node.inputs[1]), scalar(node.inputs[2])
    mask.constants.append(np.where(condition, yes or 0.0, no or 0.0))


def _walk_mask(node: ir.Node, index: int, mask: Mask) -> None:
    """Walk from one input of ``node`` up through what computes a mask."""
    value = node.inputs[index]
    if value is None:
        return
    values = array(value, _MASK_ELEMENTS)
    if values is not None:
        _judge_constant(node, index, values, mask)
        return
    maker = value.producer()
    if maker is None or maker.domain != "":
        mask.computed = mask.open_ended = True
    elif maker.op_type in _CARRIES:
        _walk_carry(maker, mask)
    elif maker.op_type == "Where":
        _judge_condition(maker, mask)
        _walk_mask(maker, 1, mask)
        _walk_mask(maker, 2, mask)
    elif maker.op_type in _ADDS:
        for position in range(len(maker.inputs)):
            _walk_mask(maker, position, mask)
    elif maker.op_type == "Mul":
        _walk_product(maker, mask)
    else:
        mask.computed = True
        mask.open_ended |= maker.op_type not in ("Gather", "MatMul", "Sub", "Max", "Clip")


def _walk_carry(maker: ir.Node, mask: Mask) -> None:
    source = maker.inputs[0]
    if maker.op_type == "Cast" and source is not None and not _is_float(source):
        mask.computed = True  # zeros and ones
        return
    _walk_mask(maker, 0, mask)


def _walk_product(mul: ir.Node, mask: Mask) -> None:
    """``(1 - mask) * fill``: the constant is a fill when the other side is zeros and ones."""
    mask.computed = True
    for index, other in ((0, 1), (1, 0)):
        values = array(mul.inputs[index], _MASK_ELEMENTS)
        if values is not None and _is_binary(mul.inputs[other]):
            _judge_constant(mul, index, values, mask)
            return
    mask.open_ended = True


def _is_binary(value: ir.Value | None) -> bool:
    if value is None:
        return False
    subtraction = made_by(value, "Sub")
    if subtraction is not None:
        ones = array(subtraction.inputs[0], 1)
        return (
            ones is not None
            and float(ones.reshape(-1)[0]) == 1
            and _is_binary(subtraction.inputs[1])
        )
    moved = made_by(value, *_CARRIES)
    if moved is None:
        return False
    source = moved.inputs[0]
    if moved.op_type == "Cast" and source is not None and not _is_float(source):
        return True  # a padding mask of integers holds 0 and 1 by convention; larger would not mask
    return _is_binary(source)


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def _judge_constant(node: ir.Node, index: int, values: np.ndarray, mask: Mask) -> None:
    if not np.issubdtype(values.dtype, np.floating) and values.dtype.kind != "V":
        return
    if values.size and float(values.min()) < MASK_FILL:
        mask.fills.append((node, index))
    if node.op_type in _ADDS:
        mask.constants.append(values)


def _may_be_empty(mask: Mask) -> bool:
    """False only when every mask is a constant, and their sum leaves each row a position."""
    if mask.computed:
        return True
    total: np.ndarray = np.zeros(1, np.float64)
    for values in mask.constants:
        total = total + np.maximum(values.astype(np.float64), MASK_FILL)
    return bool((total.max(axis=-1) <= MASK_FILL / 2).any())


def _make_finite(
    graph: ir.Graph,
    node: ir.Node,
    index: int,
    finite: dict[ir.Value, ir.Value],
    taken: set[str],
) -> None:
    value = node.inputs[index]
    values = array(value, _MASK_ELEMENTS)
    if value is None or values is None:
        return
    if value not in finite:
        bounded = np.asarray(np.maximum(values, values.dtype.type(MASK_FILL)))
        finite[value] = new_constant(graph, f"{value.name}_finite", bounded, taken)
    node.replace_input_with(index, finite[value])


def _guard_behind(softmax: ir.Node) -> ir.Node | None:
    """Return the Where of ``Where(IsNaN(softmax), 0, softmax)``."""
    for node in softmax.outputs[0].consumers():
        if not is_op(node, "Where") or node.inputs[2] is not softmax.outputs[0]:
            continue
        test, zero = made_by(node.inputs[0], "IsNaN"), array(node.inputs[1], 1)
        if test is None or test.inputs[0] is not softmax.outputs[0] or zero is None:
            continue
        if not zero.any() and not node.outputs[0].is_graph_output():
            return node
    return None
