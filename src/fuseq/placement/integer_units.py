"""Finds what an integer kernel can run where input and output must both be quantized.

A unit is one operator with the bias and the activation that its kernel absorbs. Reads only.

Cases:
1. Conv, Gemm and MatMul with constant weights; a Relu or Clip behind them is absorbed, a bias added
   behind a MatMul too. Gemm and MatMul can also write float.
2. Operators of :attr:`FusionRules.data_ops`: ``own`` have a kernel between any two scales,
   ``same`` copy values, so both sides share one scale.
3. Add and Mul with one constant number: a number alone is the end of its own range, so eight bits
   hold it exactly. A constant of more elements would be rounded, and is refused.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.placement.patterns import Weighted, constant_of, is_float_activation, weighted
from fuseq.placement.plan import Limits, Use
from fuseq.targets.fusion import FusionRules

_UNIT_RANGE = frozenset({"Sigmoid", "Softmax", "HardSigmoid"})
_WRITTEN_AS_CONV = frozenset({"HardSwish", "HardSigmoid"})
_BINARY = frozenset({"Add", "Mul"})
_ALL_INPUTS = frozenset({"Add", "Mul", "Concat"})


@dataclasses.dataclass(frozen=True)
class Unit:
    """One operator that an integer kernel can run.

    Attributes:
        core: The node that does the work.
        nodes: ``core`` and what its kernel absorbs, in graph order.
        inputs: Where it reads activations.
        outputs: What it writes, behind the absorbed nodes.
        limits: Bounds that an absorbed activation, or the operator, sets on the output.
        same_scale: Input and outputs share one scale.
        writes_float: Its kernel can write float as well.
        weighted: The match, for an operator with weights.
        bias: Where it reads a constant bias.
        number: Where it reads a constant of one element, which is stored without rounding.
        refusal: Why it stays float; "" if it need not.
    """

    core: ir.Node
    nodes: tuple[ir.Node, ...]
    inputs: tuple[Use, ...]
    outputs: tuple[ir.Value, ...]
    limits: Limits | None = None
    same_scale: bool = False
    writes_float: bool = False
    weighted: Weighted | None = None
    bias: Use | None = None
    number: Use | None = None
    refusal: str = ""

    @property
    def name(self) -> str:
        """Name of the core node."""
        return self.core.name or ""


def units_of(graph: ir.Graph, rules: FusionRules) -> list[Unit]:
    """Return the graph's units in graph order, refused ones with their reason."""
    absorbed: set[ir.Node] = set()
    units = []
    for node in graph:
        if node in absorbed:
            continue
        match = weighted(node)
        unit = _weighted_unit(match) if match is not None else _data_unit(node, rules)
        if unit is None:
            continue
        absorbed.update(unit.nodes[1:])
        if not unit.refusal and any(_read_in_subgraph(out, graph) for out in unit.outputs):
            unit = dataclasses.replace(unit, refusal="a subgraph reads its output")
        units.append(unit)
    return units


def absorbed_activation(value: ir.Value) -> tuple[ir.Node, Limits] | None:
    """The Relu or Clip that alone reads ``value`` and vanishes into a quantization, with its bounds.

    A Clip whose bounds are not constant, or do not hold 0, does not vanish: 0 must stay exact.
    """
    node, slot = _sole_reader(value)
    if node is None or node.op_type not in ("Relu", "Clip") or slot != 0:
        return None
    if node.op_type == "Relu":
        return node, (0.0, None)
    low, high = (_bound(node, index) for index in (1, 2))
    if isinstance(low, str) or isinstance(high, str):
        return None
    holds_zero = (low is None or low <= 0) and (high is None or high >= 0)
    return (node, (low, high)) if holds_zero else None


def _sole_reader(value: ir.Value) -> tuple[ir.Node | None, int]:
    """The node and input number that alone read ``value``; None if there are others or none."""
    uses = tuple(value.uses())
    producer = value.producer()
    if value.is_graph_output() or len(uses) != 1 or producer is None:
        return None, 0
    if uses[0].node.graph is not producer.graph:
        return None, 0
    return uses[0].node, uses[0].idx


def _bound(node: ir.Node, index: int) -> float | str | None:
    """A Clip's bound; None if it is open, a word if it is not constant."""
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None:
        return None
    tensor = constant_of(value)
    if tensor is None:
        return "computed"
    bound = float(tensor.numpy().reshape(-1)[0])
    return bound if np.isfinite(bound) else None


def _weighted_unit(match: Weighted) -> Unit:
    node = match.node
    nodes = [node]
    bias: Use | None = Use(node.name or "", 2) if match.bias is not None else None
    value = node.outputs[0]
    if node.op_type == "MatMul":
        adder, slot = _sole_reader(value)
        if adder is not None and _adds_bias(adder, 1 - slot, match):
            bias = Use(adder.name or "", 1 - slot)
            nodes.append(adder)
            value = adder.outputs[0]
    activation = absorbed_activation(value)
    limits = None
    if activation is not None:
        nodes.append(activation[0])
        value, limits = activation[0].outputs[0], activation[1]
    return Unit(
        core=node,
        nodes=tuple(nodes),
        inputs=(Use(node.name or "", 0),),
        outputs=(value,),
        limits=limits,
        writes_float=not match.is_conv,
        weighted=match,
        bias=bias,
        refusal=_weighted_refusal(match),
    )


def _weighted_refusal(match: Weighted) -> str:
    node = match.node
    if match.bias is not None:
        tensor = constant_of(match.bias)
        if tensor is None:
            return "its bias is computed, not constant"
        if len(tensor.shape) != 1 or tensor.shape[0] != _channels(match):
            return "its bias is not one number a channel"
        if node.op_type == "Gemm" and node.attributes.get_float("beta", 1.0) != 1.0:
            return "its beta is not 1"
    if node.op_type == "MatMul" and match.data.shape is not None and len(match.data.shape) < 2:
        return "its input is a vector"
    return ""


def _adds_bias(node: ir.Node, slot: int, match: Weighted) -> bool:
    """Whether ``node`` is an Add whose input ``slot`` is one constant a channel."""
    if node.op_type != "Add":
        return False
    tensor = constant_of(node.inputs[slot])
    return tensor is not None and len(tensor.shape) == 1 and tensor.shape[0] == _channels(match)


def _channels(match: Weighted) -> int:
    tensor = match.weight.const_value
    return int(tensor.shape.numpy()[match.channel_axis]) if tensor is not None else 0


def _data_unit(node: ir.Node, rules: FusionRules) -> Unit | None:
    mode = rules.data_ops.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    slots, number = _without_number(node, _data_slots(node))
    if mode is None or not any(is_float_activation(node.inputs[slot]) for slot in slots):
        return None
    nodes, outputs = [node], tuple(node.outputs)
    limits: Limits | None = (0.0, 1.0) if node.op_type in _UNIT_RANGE else None
    activation = absorbed_activation(node.outputs[0]) if mode == "own" else None
    if activation is not None and limits is None:
        nodes.append(activation[0])
        outputs, limits = (activation[0].outputs[0],), activation[1]
    return Unit(
        core=node,
        nodes=tuple(nodes),
        inputs=tuple(Use(node.name or "", slot) for slot in slots),
        outputs=outputs,
        limits=limits,
        same_scale=mode == "same",
        number=None if number is None else Use(node.name or "", number),
        refusal=_data_refusal(node, slots),
    )


def _data_slots(node: ir.Node) -> tuple[int, ...]:
    if node.op_type in _ALL_INPUTS:
        return tuple(range(len(node.inputs)))
    return (1, 2) if node.op_type == "Where" and len(node.inputs) == 3 else (0,)


def _without_number(node: ir.Node, slots: tuple[int, ...]) -> tuple[tuple[int, ...], int | None]:
    """Slots of activations, and that of the one constant number of an Add or Mul."""
    if node.op_type not in _BINARY or len(slots) != 2:
        return slots, None
    for slot in slots:
        tensor = constant_of(node.inputs[slot])
        if tensor is not None and tensor.size == 1 and np.isfinite(tensor.numpy()).all():
            return (1 - slot,), slot
    return slots, None


def _data_refusal(node: ir.Node, slots: tuple[int, ...]) -> str:
    values = [node.inputs[slot] for slot in slots]
    if not all(is_float_activation(value) for value in values):
        return "it reads a constant, which would be rounded to eight bits"
    if node.op_type in _BINARY and node.inputs[0] is node.inputs[1]:
        return "it reads one tensor twice"
    if node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") != "nearest":
        return "only the nearest mode of Resize has an integer kernel"
    if node.op_type in _WRITTEN_AS_CONV and not _has_channels(values[0]):
        return "the channels or the rank of its input are unknown, or it has no image axes"
    if node.op_type == "MaxPool" and len(node.outputs) > 1 and node.outputs[1].uses():
        return "a pool that also gives indices has no integer kernel"
    return ""


def _has_channels(value: ir.Value | None) -> bool:
    shape = value.shape if value is not None else None
    return shape is not None and len(shape) >= 3 and isinstance(shape[1], int)


def _read_in_subgraph(value: ir.Value, graph: ir.Graph) -> bool:
    return any(use.node.graph is not graph for use in value.uses())
