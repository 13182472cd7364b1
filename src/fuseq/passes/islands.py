"""Decide which nodes compute in FP32 although the model computes in FP16 or BF16, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from fuseq.passes.float_range import Fault, constant_fault, magnitude_fault
from fuseq.passes.float_slots import Slots, is_float
from fuseq.passes.matching import split_constant

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

_EPSILON_TAKERS = frozenset({"Add", "Max", "Clip"})


@dataclasses.dataclass
class Search:
    """State of one decision: the graph's slots, and nodes found so far with their reasons."""

    dtype: ir.DataType
    slots: Mapping[ir.Node, Slots]
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


def _carries(node: ir.Node) -> bool:
    if node.op_type in _WITH_CONSTANT:
        return split_constant(node) is not None
    return node.op_type in CARRIERS


def fp32_nodes(
    model: ir.Model,
    dtype: ir.DataType,
    slots: Mapping[ir.Node, Slots],
    magnitudes: Mapping[str, float],
    asked: Collection[str],
) -> Why:
    """Return the nodes that must compute in FP32, each with its reason in words.

    1. The user asked for it by node name.
    2. The operator has no kernel for ``dtype`` in the ONNX standard (Range).
    3. A calibrated value overflows or vanishes: writer and readers.
    4. A constant overflows or vanishes: its reader, and what carries the result on
       (an epsilon of 1e-12 protects a division; both stay FP32, and so does the root between).
    5. Sums of squares and running sums, and squares that are averaged (RMSNorm written out).
    """
    search = Search(dtype, slots)
    for node in model.graph:
        if node not in slots:
            continue
        if node.name in asked:
            search.keep(node, "asked for by name")  # case 1
        if dtype not in slots[node].allowed:
            search.keep(node, f"ONNX has no {dtype.name} {node.op_type}")  # case 2
        _judge_magnitudes(search, node, magnitudes)
        _judge_constants(search, node)
        _judge_operator(search, node)
    return search.why


def _judge_magnitudes(search: Search, node: ir.Node, magnitudes: Mapping[str, float]) -> None:
    for index in search.slots[node].outputs:  # case 3
        value = node.outputs[index]
        amax = magnitudes.get(value.name or "")
        fault = magnitude_fault(amax, search.dtype) if amax is not None else None
        if fault is not None:
            search.keep_value(value, f"{value.name!r} {fault.value} (up to {amax:.3g})")


def _judge_constants(search: Search, node: ir.Node) -> None:
    for index in search.slots[node].inputs:  # case 4
        value = node.inputs[index]
        if value is None or not value.is_initializer() or value.const_value is None:
            continue
        array = value.const_value.numpy()
        fault = constant_fault(array, search.dtype)
        if fault is None or (fault is Fault.OVERFLOWS and is_bound(node, index)):
            continue
        reason = f"its constant {value.name!r} {fault.value} in {search.dtype.name}"
        if fault is Fault.VANISHES and node.op_type in _EPSILON_TAKERS:
            search.keep_value(node.outputs[0], reason)
        search.keep(node, reason)


def is_bound(node: ir.Node, index: int) -> bool:
    """A Clip, Min or Max bound beyond the type's range means the same as the largest value."""
    return node.op_type in ("Clip", "Min", "Max") and (index > 0 or node.op_type != "Clip")


def _judge_operator(search: Search, node: ir.Node) -> None:
    if node.domain != "":  # case 5
        return
    if node.op_type in ACCUMULATORS:
        search.keep(node, f"{node.op_type} adds up squares or a running sum")
    elif _is_square(node) and any(
        user.op_type in ("ReduceMean", "ReduceSum") for user in node.outputs[0].consumers()
    ):
        search.keep_value(node.outputs[0], "squares are averaged")


def _is_square(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type != "Pow" or node.inputs[1] is None:
        return False
    exponent = ir.convenience.get_const_tensor(node.inputs[1])
    return exponent is not None and exponent.size == 1 and bool(np.all(exponent.numpy() == 2))
