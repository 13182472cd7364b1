"""From a plan in names of the ONNX graph to points on the calls of the living module.

Each ONNX node knows its call (:data:`fuseq.torch.capture.CALL_KEY`); a planned reader, input ``i`` of
node ``n``, is then an argument of that call:

1. Conv, ConvTranspose, Gemm, MatMul with weights: data and weight of the convolution or product. Where
   BatchNorm was folded, the node carries the BatchNorm's call, and the convolution is found before it.
2. MatMul inside ``scaled_dot_product_attention``: query, key, softmax or value.
3. Q, K and V layers merged into one product: each layer; a pair on the Split behind it acts on what
   reads the layers.
4. Anything else: the argument in the same place, unless the call became several nodes and the tensor
   is between two of them.
What has no such argument is listed with the reason; it is quantized in the export all the same.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import torch

from fuseq.formats import format_named
from fuseq.passes.matching import is_op, made_by, only_reader, scalar
from fuseq.placement.plan import Plan, QuantizedTensor, Use
from fuseq.torch.calls import CallKey
from fuseq.torch.capture import Capture
from fuseq.torch.points import (
    ActivationPoint,
    BatchNormFold,
    CallPlan,
    Points,
    WeightPoint,
    WeightSource,
)

CONVOLUTIONS = frozenset(
    {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)
PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm"})
_ATTENTION = "scaled_dot_product_attention"
_SKIPPED = frozenset(
    {"dropout", "alpha_dropout", "feature_dropout", "clone", "contiguous", "alias"}
)
"""FX operators that leave no ONNX node in eval mode."""

_MOVERS = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""ONNX operators whose output holds the values of their input."""

_ARGUMENTS = {
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("mat1", "mat2"),
    "linear": ("input", "weight"),
    "matmul": ("input", "other"),
    "bmm": ("input", "other"),
    "mm": ("input", "other"),
}
_MAX_STEPS = 6


@dataclasses.dataclass(frozen=True)
class Place:
    """One argument of one FX node; the call that made the node is the call of the module."""

    fx_node: torch.fx.Node
    argument: str


class _UnmappedError(Exception):
    """Why a planned reader is no argument of a call."""


def points_of(plan: Plan, model: ir.Model, capture: Capture) -> Points:
    """Find the point for every reader of the plan.

    Args:
        plan: Made for ``model``.
        model: Canonical float graph of ``capture.model``.
        capture: The export that ``model`` came from.
    """
    return _Mapping(plan, model, capture).points()


class _Mapping:
    """Look-ups that finding points shares; nothing here outlives :func:`points_of`."""

    def __init__(self, plan: Plan, model: ir.Model, capture: Capture) -> None:
        self.plan, self.capture = plan, capture
        self.nodes = {node.name or "": node for node in model.graph}
        self.fx = {node.name: node for node in capture.program.graph.nodes}
        self.owner = {name: call for call in capture.calls for name in call.fx_nodes}
        signature = capture.program.graph_signature
        self.paths = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        norms = (node for node in model.graph if node.op_type == "BatchNormalization")
        self.kept_norms = {found[1] for n in norms if (found := capture.call_of_node(n))}
        self.activations: dict[CallKey, dict[str, ActivationPoint]] = {}
        self.weights: dict[CallKey, WeightPoint] = {}
        self.folded: dict[CallKey, BatchNormFold] = {}
        self.missing: dict[str, str] = {}

    def points(self) -> Points:
        for entry in self.plan.tensors:
            for use in entry.uses:
                try:
                    self._add(entry, use)
                except _UnmappedError as reason:
                    self.missing.setdefault(entry.tensor, str(reason))
        members: dict[str, list[WeightSource]] = {}
        for point in self.weights.values():
            members.setdefault(point.group, []).append(point.source)
        keys = dict.fromkeys([*self.activations, *self.weights, *self.folded])
        calls = {
            key: CallPlan(
                self.activations.get(key, {}),
                self._with_members(self.weights.get(key), members),
                self.folded.get(key),
            )
            for key in keys
        }
        visits: dict[str, int] = {}
        for call in self.capture.calls:
            visits[call.key.scope] = max(visits.get(call.key.scope, 1), call.key.visit + 1)
        return Points(calls, self.missing, {path: n for path, n in visits.items() if n > 1})

    @staticmethod
    def _with_members(
        point: WeightPoint | None, members: dict[str, list[WeightSource]]
    ) -> WeightPoint | None:
        if point is None:
            return None
        return dataclasses.replace(point, members=tuple(dict.fromkeys(members[point.group])))

    def _add(self, entry: QuantizedTensor, use: Use) -> None:
        node = self.nodes.get(use.node)
        if node is None:
            raise _UnmappedError("it is an output of the model")
        if entry.kind == "bias":
            raise _UnmappedError(
                "a bias is rounded to steps of input scale x weight scale in the file only"
            )
        fmt = format_named(entry.format)
        if entry.kind == "weight" and not fmt.symmetric:
            return  # a number that an Add or Mul takes: it is stored exactly
        if entry.kind == "weight":
            for place in self._weights_of(node):
                self._add_weight(entry, node, place)
            return
        if self._is_copied_inside(entry, node):
            return
        for place in self._places(node, use.index):
            factor = self._factor(node, use.index, place)
            point = ActivationPoint(entry.tensor, entry.group, fmt, factor)
            self.activations.setdefault(self._key(place), {})[place.argument] = point

    def _key(self, place: Place) -> CallKey:
        call = self.owner.get(place.fx_node.name)
        if call is None:
            raise _UnmappedError(f"{place.fx_node.name} was called from no module")
        return call.key

    def _places(self, node: ir.Node, index: int) -> list[Place]:
        """Arguments that read what input ``index`` of ``node`` reads."""
        fx_node = self._fx_of(node)
        word = word_of(fx_node)
        if node.op_type in ("Conv", "ConvTranspose"):  # case 1
            return [Place(self._before(fx_node, CONVOLUTIONS), "input")]
        if node.op_type in ("Gemm", "MatMul"):
            if word == _ATTENTION:  # case 2
                return [Place(fx_node, _attention_argument(node, index))]
            product = self._before(fx_node, PRODUCTS)
            if index == 0:
                return [
                    Place(each, _ARGUMENTS[word_of(each)][0])
                    for each in self._merged(node, product)
                ]
            return [Place(product, _ARGUMENTS[word_of(product)][1])]
        if is_op(node, "Split") and word == "linear":  # case 3
            return [
                place
                for part in node.outputs
                for reader in part.uses()
                for place in self._places(reader.node, reader.idx)
            ]
        if self._made_inside(node, index, fx_node):
            raise _UnmappedError(f"it is inside the call {word} and no argument of it")
        if word == "cat":
            return [Place(fx_node, f"tensors.{index}")]
        return [Place(fx_node, ("input", "other")[index])] if index < 2 else self._no(node, index)

    def _made_inside(self, node: ir.Node, index: int, fx_node: torch.fx.Node) -> bool:
        """The call became several nodes, and input ``index`` is what one of them gives to another."""
        value = node.inputs[index]
        maker = value.producer() if value is not None else None
        found = self.capture.call_of_node(maker) if maker is not None else None
        return found is not None and found[1] == fx_node.name

    def _is_copied_inside(self, entry: QuantizedTensor, node: ir.Node) -> bool:
        """A node that only moves its input is the end of a call, and its output has the same scale:
        the point is where that output is read."""
        if node.op_type not in _MOVERS or not self._made_inside(node, 0, self._fx_of(node)):
            return False
        moved = node.outputs[0].name
        return any(each.tensor == moved and each.group == entry.group for each in self.plan.tensors)

    @staticmethod
    def _no(node: ir.Node, index: int) -> list[Place]:
        raise _UnmappedError(
            f"input {index} of {node.op_type} {node.name} is no argument of its call"
        )

    def _fx_of(self, node: ir.Node) -> torch.fx.Node:
        found = self.capture.call_of_node(node)
        if found is None or found[1] not in self.fx:
            raise _UnmappedError(f"{node.op_type} {node.name} came from no call of the module")
        node_of_call: torch.fx.Node = self.fx[found[1]]
        return node_of_call

    def _before(self, fx_node: torch.fx.Node, words: frozenset[str]) -> torch.fx.Node:
        """The nearest operator of ``words`` at or before ``fx_node``, along first arguments."""
        current: object = fx_node
        for _ in range(_MAX_STEPS):
            if not isinstance(current, torch.fx.Node) or not current.args:
                break
            if word_of(current) in words:
                return current
            current = current.args[0]
        raise _UnmappedError(f"no {' or '.join(sorted(words)[:2])} was found at {fx_node.name}")

    def _merged(self, node: ir.Node, product: torch.fx.Node) -> list[torch.fx.Node]:
        """The layers that were merged into ``node``; ``product`` alone where none were."""
        after = only_reader(node.outputs[0])
        if after is not None and is_op(after, "Add"):
            after = only_reader(after.outputs[0])
        if after is None or not is_op(after, "Split"):
            return [self._layer_behind(node) or product]
        found = (self.capture.call_of_value.get(part.name or "") for part in after.outputs)
        layers = [self.fx[each[1]] for each in found if each is not None and each[1] in self.fx]
        linears = [layer for layer in layers if word_of(layer) == "linear"]
        return linears or [product]

    def _layer_behind(self, node: ir.Node) -> torch.fx.Node | None:
        """The layer whose output ``node`` computes: layers that were merged may be apart again, and
        then each of their nodes has the call of the first. Values are named after their FX nodes."""
        value = node.outputs[0]
        for _ in range(_MAX_STEPS):
            layer: torch.fx.Node | None = self.fx.get(value.name or "")
            if layer is not None and word_of(layer) == "linear":
                return layer
            reader = only_reader(value)
            if reader is None or not is_op(reader, "Add", "Reshape"):
                return None
            value = reader.outputs[0]
        return None

    def _weights_of(self, node: ir.Node) -> list[Place]:
        fx_node = self._fx_of(node)
        if node.op_type in ("Conv", "ConvTranspose"):
            return [Place(self._before(fx_node, CONVOLUTIONS), "weight")]
        product = self._before(fx_node, PRODUCTS)
        return [Place(each, _ARGUMENTS[word_of(each)][1]) for each in self._merged(node, product)]

    def _add_weight(self, entry: QuantizedTensor, node: ir.Node, place: Place) -> None:
        argument = 2 if word_of(place.fx_node) in ("addmm", "baddbmm") else 1
        given = place.fx_node.args[argument] if len(place.fx_node.args) > argument else None
        path = self.paths.get(given.name, "") if isinstance(given, torch.fx.Node) else ""
        axis = 0 if word_of(place.fx_node) == "linear" else (entry.axis or 0)
        fold = self._fold(place.fx_node, node)
        source = WeightSource(path, fold, axis)
        if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
            weight = _constant_of(node, word_of(place.fx_node))
            factor = constant_factor(source, self.capture, weight)
            source = dataclasses.replace(source, factor=factor)
        self.weights[self._key(place)] = WeightPoint(
            entry.tensor, entry.group, format_named(entry.format), entry.axis is not None,
            source, (source,),
        )  # fmt: skip

    def _fold(self, fx_node: torch.fx.Node, node: ir.Node) -> BatchNormFold | None:
        """The BatchNorm behind a layer that left no node of its own."""
        norm = _only_user(fx_node)
        while norm is not None and word_of(norm) in _SKIPPED:
            norm = _only_user(norm)
        if norm is None or word_of(norm) != "batch_norm" or norm.name in self.kept_norms:
            return None
        mean = norm.args[3]
        path = self.paths.get(mean.name, "") if isinstance(mean, torch.fx.Node) else ""
        eps = norm.args[7]
        assert isinstance(eps, float)
        fold = BatchNormFold(path.rpartition(".")[0], eps, self._fx_of(node) is not norm)
        self.folded[self._key(Place(norm, "input"))] = fold
        return fold

    def _factor(self, node: ir.Node, index: int, place: Place) -> float:
        """What the argument is times the planned tensor: attention scales its query inside."""
        if place.argument != "query" or word_of(place.fx_node) != _ATTENTION:
            return 1.0
        mul = made_by(node.inputs[index], "Mul")
        if mul is None or self._fx_of(mul) is not place.fx_node:
            return 1.0
        scales = [found for value in mul.inputs if (found := scalar(value)) is not None]
        return 1.0 / scales[0] if scales else 1.0


def _constant_of(node: ir.Node, word: str) -> np.ndarray | None:
    """The exported weight with the axes of the module's: ``[out, in]`` for a linear layer."""
    value = node.inputs[1]
    if value is None or value.const_value is None:
        return None
    array: np.ndarray = value.const_value.numpy()
    is_turned = node.op_type == "Gemm" and not node.attributes.get_int("transB", 0)
    return array.T if word == "linear" and is_turned else array


def constant_factor(
    source: WeightSource, capture: Capture, exported: np.ndarray | None
) -> tuple[float, ...] | None:
    """What the exported weight is times the module's, a channel, beyond a folded BatchNorm.

    A multiplication by constants behind the layer was folded into it; the module still does it. None
    where there was none, or the layer's weight is not a parameter.
    """
    state = capture.program.state_dict
    if source.path not in state or exported is None:
        return None
    own = state[source.path].detach().cpu().double().numpy()
    theirs = exported.astype(np.float64)
    if own.shape != theirs.shape:
        return None
    expected, found = (_channel_amax(array, source.axis) for array in (own, theirs))
    if source.fold is not None:
        variance = state[f"{source.fold.path}.running_var"].cpu().double().numpy()
        gamma = state.get(f"{source.fold.path}.weight")
        scale = 1.0 if gamma is None else gamma.detach().cpu().double().numpy()
        expected = expected * np.abs(scale / np.sqrt(variance + source.fold.eps))
    ratio = np.where(expected > 0, found / np.where(expected > 0, expected, 1.0), 1.0)
    if np.allclose(ratio, 1.0, rtol=1e-4) or not (ratio > 0).all():
        return None
    return tuple(float(each) for each in ratio)


def _channel_amax(array: np.ndarray, axis: int) -> np.ndarray:
    others = tuple(each for each in range(array.ndim) if each != axis)
    return np.asarray(np.abs(array).max(axis=others))


def word_of(node: torch.fx.Node) -> str:
    """Name of an FX node's operator without library and overload: ``conv2d``."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) == 3 else parts[-1]


def _only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _attention_argument(node: ir.Node, index: int) -> str:
    if made_by(node.inputs[0], "Softmax") is not None:
        return ("softmax", "value")[index]
    return ("query", "key")[index]
