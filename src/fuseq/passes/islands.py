"""Decide which nodes compute in FP32 although the model computes in FP16 or BF16, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import onnx_ir as ir

from fuseq.passes.float_range import (
    Fault,
    constant_fault,
    magnitude_fault,
    scale_fault,
    smallest_normal,
)
from fuseq.passes.float_slots import Slots, is_float
from fuseq.passes.integer_floats import integer_regions
from fuseq.passes.matching import constant, is_op, made_by, scalar, split_constant
from fuseq.passes.upcasts import upcast_regions

Why = dict[ir.Node, str]

ACCUMULATORS = frozenset({"CumSum", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"})
"""Operators that add up squares, exponentials or a running sum: an FP16 sum is exact to 2048 only."""

CARRIERS = frozenset(
    {
        "Abs",
        "Cast",
        "Clip",
        "Expand",
        "Flatten",
        "Identity",
        "Max",
        "Min",
        "Neg",
        "Pow",
        "Reciprocal",
    }
    | {"ReduceMean", "ReduceSum", "Reshape", "Slice", "Sqrt", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose output is as delicate as their input: a variance, its root, its reciprocal."""

_WITH_CONSTANT = frozenset({"Add", "Sub", "Mul", "Div"})
"""Carriers when the other operand is a constant: a variance plus its epsilon."""

_BIASED = ("Conv", "ConvTranspose", "Gemm", "LayerNormalization", "InstanceNormalization")
"""Operators whose third input is added to what they compute."""

_EPSILON_TAKERS = frozenset({"Add", "Max", "Clip"})

NO_BFLOAT16 = frozenset({"HardSwish", "LpNormalization", "MeanVarianceNormalization", "Mish"})
"""ONNX allows BF16, but the parser of TensorRT-RTX 1.7.1 refuses it ("Only FLOAT, HALF")."""

_PERIODIC_LIMIT = 16.0
"""Above this an FP16 angle is rounded by more than 1/128 (2**-11 of its size)."""


@dataclasses.dataclass
class Search:
    """State of one decision: the graph's slots, and nodes found so far with their reasons."""

    dtype: ir.DataType
    slots: Mapping[ir.Node, Slots]
    magnitudes: Mapping[str, float]
    why: Why = dataclasses.field(default_factory=dict)

    def keep(self, node: ir.Node | None, reason: str) -> None:
        """Keep ``node`` in FP32, if it computes in floats at all."""
        slots = self.slots.get(node) if node is not None else None
        if node is None or slots is None or node in self.why or slots.as_is:
            return
        if slots.inputs or slots.outputs:
            self.why[node] = reason

    def keep_value(self, value: ir.Value, reason: str) -> None:
        """Keep whoever writes and reads ``value`` in FP32, onward through CARRIERS."""
        self.keep(value.producer(), reason)
        for user, index in value.uses():
            known = user in self.why
            if user not in self.slots or index not in self.slots[user].inputs:
                continue
            self.keep(user, reason)
            if not known and _carries(user) and is_float(user.outputs[0]):
                self.keep_value(user.outputs[0], reason)

    def magnitude(self, value: ir.Value) -> float | None:
        """Largest calibrated magnitude; behind a Q/DQ pair that of the value before it."""
        found = self.magnitudes.get(value.name or "")
        dequantize = made_by(value, "DequantizeLinear") if found is None else None
        quantize = made_by(dequantize.inputs[0], "QuantizeLinear") if dequantize else None
        source = quantize.inputs[0] if quantize is not None else None
        return found if source is None else self.magnitudes.get(source.name or "")


def fp32_nodes(
    model: ir.Model,
    dtype: ir.DataType,
    slots: Mapping[ir.Node, Slots],
    magnitudes: Mapping[str, float],
    asked: Collection[str],
) -> Why:
    """Return the nodes that must compute in FP32, each with its reason in words.

    1. The user asked for it by node name.
    2. The operator has no kernel for ``dtype`` in the ONNX standard (Range), or, for BF16, in
       TensorRT (NO_BFLOAT16).
    3. A calibrated value overflows or vanishes: writer and readers.
    4. A constant overflows or vanishes: its reader, and what carries the result on
       (an epsilon of 1e-12 protects a division; both stay FP32, and so does the root between).
       A bias that vanishes beside a normal output is none (_BIASED).
       A quantization scale that the type cannot hold: the Q or DQ itself.
    5. Sums of squares and running sums, squares that are averaged (RMSNorm written out), and
       angles of Sin and Cos beyond _PERIODIC_LIMIT or of unknown size.
    6. Floats computed from integers alone (see ``integer_regions``).
    7. What the author of a narrow model computes in FP32 (see ``upcast_regions``).
    """
    search = Search(dtype, slots, magnitudes)
    for node in model.graph:
        if node.name in asked:
            search.keep(node, "asked for by name")  # case 1
        if dtype not in slots[node].allowed:
            search.keep(node, f"ONNX has no {dtype.name} {node.op_type}")  # case 2
        if dtype == ir.DataType.BFLOAT16 and is_op(node, *NO_BFLOAT16):
            search.keep(node, f"compilers have no BFLOAT16 {node.op_type}")
        _judge_magnitudes(search, node)
        _judge_constants(search, node)
        _judge_operator(search, node)
    for node in integer_regions(model, slots):  # case 6
        search.keep(node, "it computes positions or sizes from integers")
    for node in upcast_regions(model, slots):  # case 7
        search.keep(node, "the model computes it in FP32 on purpose")
    return search.why


def _judge_magnitudes(search: Search, node: ir.Node) -> None:
    for index in search.slots[node].outputs:  # case 3
        value = node.outputs[index]
        amax = search.magnitude(value)
        fault = magnitude_fault(amax, search.dtype) if amax is not None else None
        if fault is not None:
            search.keep_value(value, f"{value.name!r} {fault.value} (up to {amax:.3g})")


def _judge_constants(search: Search, node: ir.Node) -> None:
    for index in search.slots[node].inputs:  # case 4
        value = node.inputs[index]
        tensor = constant(value)
        if value is None or tensor is None:
            continue
        is_scale = index == 1 and is_op(node, "QuantizeLinear", "DequantizeLinear")
        judge = scale_fault if is_scale else constant_fault
        fault = judge(tensor.numpy(), search.dtype)
        if fault is None or (fault is Fault.OVERFLOWS and _is_bound(node, index)):
            continue
        if fault is Fault.VANISHES and _is_lost_in_sum(search, node, index):
            continue
        reason = f"its constant {value.name!r} {fault.value} in {search.dtype.name}"
        if fault is Fault.VANISHES and node.op_type in _EPSILON_TAKERS:
            search.keep_value(node.outputs[0], reason)
        search.keep(node, reason)


def _judge_operator(search: Search, node: ir.Node) -> None:
    if node.domain != "":  # case 5
        return
    if node.op_type in ACCUMULATORS:
        search.keep(node, f"{node.op_type} adds up squares or a running sum")
    elif node.op_type in ("Sin", "Cos"):
        _judge_angle(search, node)
    elif _is_square(node) and any(
        user.op_type in ("ReduceMean", "ReduceSum") for user in node.outputs[0].consumers()
    ):
        search.keep_value(node.outputs[0], "squares are averaged")


def _judge_angle(search: Search, node: ir.Node) -> None:
    """Keep the angle in FP32 back to where it is no longer computed pointwise."""
    value = node.inputs[0]
    amax = search.magnitude(value) if value is not None else None
    if amax is not None and amax <= _PERIODIC_LIMIT:
        return
    reason = f"{node.op_type} needs an exact angle"
    search.keep(node, reason)
    while value is not None:
        maker = made_by(value, "Mul", "Add", "Sub", "Div", *CARRIERS)
        if maker is None or maker not in search.slots:
            return
        search.keep(maker, reason)
        parts = split_constant(maker) if len(maker.inputs) == 2 else None
        value = parts[0] if parts is not None else maker.inputs[0]


def _is_lost_in_sum(search: Search, node: ir.Node, index: int) -> bool:
    """A bias is rounded by half the smallest subnormal at most, which is within the rounding of an
    output that reaches the normal values (2**-25 = 2**-14 * 2**-11 in FP16)."""
    if not (_is_bias_behind_product(node, index) or (index == 2 and is_op(node, *_BIASED))):
        return False
    amax = search.magnitude(node.outputs[0])
    return amax is not None and amax >= smallest_normal(search.dtype)


def _is_bias_behind_product(node: ir.Node, index: int) -> bool:
    """What a linear layer of three axes adds: MatMul has no bias of its own."""
    return (
        is_op(node, "Add") and made_by(node.inputs[1 - index], "MatMul", "Gemm", "Conv") is not None
    )


def _is_bound(node: ir.Node, index: int) -> bool:
    """A Clip, Min or Max bound beyond the type's range means the same as the largest value."""
    return node.op_type in ("Clip", "Min", "Max") and (index > 0 or node.op_type != "Clip")


def _carries(node: ir.Node) -> bool:
    if node.op_type in _WITH_CONSTANT:
        return split_constant(node) is not None
    return node.op_type in CARRIERS


def _is_square(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    return node.op_type == "Pow" and scalar(node.inputs[1]) == 2
