"""New values of a plan's weights and biases, so that rounding them costs less at the layers' outputs.

A weight becomes the values of its format's grid that second-order rounding chose: Q/DQ insertion then
rounds each to itself. Scales never change. Layers are taken in the float model, each by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.calibration.layer_inputs import Layer, layer_of
from fuseq.calibration.observed import values_by_name
from fuseq.calibration.rounding import dequantize_array, quantize_array
from fuseq.calibration.scales import Scale
from fuseq.calibration.second_order import nearest_on_grid, round_second_order
from fuseq.calibration.session import open_session, usable_threads
from fuseq.calibration.upcast import upcast
from fuseq.formats import format_named
from fuseq.passes.matching import constant, only_reader, split_constant
from fuseq.placement.plan import Plan, QuantizedTensor

MAX_WIDTH = 8192
"""Inputs of one output beyond which a layer keeps rounding to nearest: H would take 512 MiB."""

_PASS_BYTES = 256 * 2**20
"""Sums of all layers of one pass over the data; more layers take another pass."""

_PASS_INPUTS = 8
"""Activations of one pass: all of a batch are in memory at once."""

_NAMES_IN_NOTE = 5


@dataclasses.dataclass(frozen=True)
class Refined:
    """New values by initializer name, float32 in the initializer's shape; and what was left, why."""

    values: Mapping[str, np.ndarray]
    notes: tuple[str, ...]


@dataclasses.dataclass
class _Task:
    """A layer, its entries in the plan, and sums over the rows seen so far.

    Attributes:
        layer: The layer.
        weight: Its weight's entry.
        data: Its input's entry; None where the input stays float.
        hessian: Sum of ``x^T x``, [groups, K, K]; None where nobody asks.
        sums: Sum of ``Q(x)`` and of ``x``, [2, groups, K].
        count: Rows.
    """

    layer: Layer
    weight: QuantizedTensor
    data: QuantizedTensor | None
    hessian: np.ndarray | None
    sums: np.ndarray
    count: int = 0


def refine(
    model: ir.Model,
    plan: Plan,
    scales: Mapping[str, Scale],
    source: Source,
    *,
    second_order: bool,
    bias_correction: bool,
    progress: Callable[[int, int | None], None] | None = None,
) -> Refined:
    """Choose values for the plan's weights, and biases that undo the mean error of the outputs.

    1. ``second_order``: :func:`fuseq.calibration.second_order.round_second_order`.
    2. ``bias_correction``: ``b + W E[x] - Q(W) E[Q(x)]``, the empirical form of Nagel et al.,
       "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, section
       4.2, with the layer's input rounded too. A layer without a bias of its own is left.
    3. A weight that several nodes read, and layers that :func:`layer_of` refuses, are left.

    Args:
        model: The canonical float model; not changed.
        plan: Its weight entries are taken.
        scales: By group, of activations and weights.
        source: Read once or more: the sums of one pass take 256 MiB at most, or one layer.
        second_order: Do 1.
        bias_correction: Do 2.
        progress: Called with (layers done, layers) after each layer.

    Raises:
        CalibrationError: The data does not fit.
        ModelError: ONNX Runtime cannot open the model.
    """
    left: dict[str, list[str]] = {}
    tasks = list(_tasks(model, plan, left))
    values: dict[str, np.ndarray] = {}
    finished = 0
    for some in _passes(tasks):
        _sum_up(model, some, scales, source, second_order)
        for task in some:
            rows = _rounded(task, scales[task.weight.group])
            task.hessian = None
            if second_order:
                values[task.weight.tensor] = task.layer.stored(rows)
            if bias_correction:
                _correct(task, rows, values, left)
            finished += 1
            if progress is not None:
                progress(finished, len(tasks))
    done = [("second-order rounding", second_order), ("bias correction", bias_correction)]
    what = " and ".join(name for name, is_on in done if is_on)
    notes = [f"{what}: {len(tasks)} layers."] if tasks else []
    notes += [f"{what}: {_shown(names)} left, because {why}." for why, names in left.items()]
    return Refined(values, tuple(notes))


def _tasks(model: ir.Model, plan: Plan, left: dict[str, list[str]]) -> Iterator[_Task]:
    nodes = {node.name or "": node for node in model.graph}
    inputs = {
        use.node: entry
        for entry in plan.tensors
        if entry.kind == "activation"
        for use in entry.uses
        if use.index == 0
    }
    for entry in plan.tensors:
        if entry.kind != "weight" or not format_named(entry.format).symmetric:
            continue  # not a layer's: a number of an Add or Mul is stored exactly
        node = nodes[entry.uses[0].node]
        layer = layer_of(node)
        why = layer if isinstance(layer, str) else _refusal(layer, entry)
        if why is not None or isinstance(layer, str):
            left.setdefault(str(why), []).append(entry.region)
            continue
        groups, _, width = layer.weights().shape
        yield _Task(layer, entry, inputs.get(node.name or ""), None, np.zeros((2, groups, width)))


def _refusal(layer: Layer, entry: QuantizedTensor) -> str | None:
    """Case 3."""
    if len(layer.match.weight.uses()) != 1:
        return "several nodes read the weight"
    if entry.axis is not None and entry.axis != layer.match.channel_axis:
        return "the scales are not by output channel"
    if layer.width > MAX_WIDTH:
        return f"an output has more than {MAX_WIDTH} inputs"
    return None


def _passes(tasks: list[_Task]) -> Iterator[list[_Task]]:
    """Layers whose sums and inputs are in memory together, in graph order."""
    some: list[_Task] = []
    size = 0
    inputs: set[str | None] = set()
    for task in tasks:
        bytes_ = 8 * task.sums.shape[1] * task.sums.shape[2] ** 2
        name = task.layer.match.data.name
        full = size + bytes_ > _PASS_BYTES or len(inputs | {name}) > _PASS_INPUTS
        if some and full:
            yield some
            some, size, inputs = [], 0, set()
        some.append(task)
        size += bytes_
        inputs.add(name)
    if some:
        yield some


def _sum_up(
    model: ir.Model,
    tasks: list[_Task],
    scales: Mapping[str, Scale],
    source: Source,
    second_order: bool,
) -> None:
    """One pass over the data, in place. The order of batches is fixed, so that sums are too."""
    names = list(dict.fromkeys(task.layer.match.data.name or "" for task in tasks))
    for found in inputs_of_layers(model, names, source):
        for task in tasks:
            rows = task.layer.rows(found[task.layer.match.data.name or ""])
            rounded = _fake(rows, task.data, scales)
            task.sums += [rounded.sum(axis=0, dtype=np.float64), rows.sum(0, dtype=np.float64)]
            task.count += len(rows)
            if second_order:
                by_group = rows.transpose(1, 0, 2)
                square = by_group.transpose(0, 2, 1) @ by_group
                task.hessian = square.astype(np.float64) + (
                    0 if task.hessian is None else task.hessian
                )


def inputs_of_layers(
    model: ir.Model, names: Sequence[str], source: Source
) -> Iterator[dict[str, np.ndarray]]:
    """Tensors of the float model by name, one batch after the other, computed in FP32.

    Raises:
        CalibrationError: The data does not fit.
        ModelError: ONNX Runtime cannot open the model.
    """
    copy = model.clone()
    upcast(copy)
    known = values_by_name(copy.graph)
    given = {value.name for value in copy.graph.inputs}
    computed = [name for name in names if name not in given]
    outputs = [known[name] for name in computed]
    copy.graph.outputs[:] = outputs or copy.graph.outputs[:1]
    asked = [value.name or "" for value in copy.graph.outputs]
    session = open_session(copy, usable_threads())
    for batch in source:
        found = dict(zip(asked, session.run(asked, batch), strict=True))
        yield {name: batch[name] if name in given else found[name] for name in names}


def _fake(
    rows: np.ndarray, entry: QuantizedTensor | None, scales: Mapping[str, Scale]
) -> np.ndarray:
    """Rows as the quantized model sees them."""
    if entry is None or entry.axis is not None:
        return rows
    scale = scales[entry.group]
    codes = quantize_array(rows, scale.scale, scale.zero_point, format_named(entry.format))
    return dequantize_array(codes, scale.scale, scale.zero_point)


def _rounded(task: _Task, scale: Scale) -> np.ndarray:
    """The weight on its grid, [groups, O, K], by second order where H was summed."""
    rows, fmt = task.layer.weights(), format_named(task.weight.format)
    steps = scale.scale.reshape(rows.shape[:2]) if scale.axis is not None else scale.scale
    if task.hessian is not None:
        return round_second_order(rows, task.hessian, steps, fmt)
    return nearest_on_grid(rows, steps, fmt)


def _correct(
    task: _Task,
    rows: np.ndarray,
    values: dict[str, np.ndarray],
    left: dict[str, list[str]],
) -> None:
    """Case 2: put the corrected bias into ``values``."""
    bias = _bias(task.layer)
    if bias is None or bias.const_value is None:
        left.setdefault("the layer has no bias of its own", []).append(task.weight.region)
        return
    rounded, exact = task.sums / max(task.count, 1)
    error = np.einsum("gok,gk->go", rows, rounded) - np.einsum(
        "gok,gk->go", task.layer.weights(), exact
    )
    old = np.asarray(bias.const_value.numpy(), dtype=np.float64)
    values[bias.name or ""] = (old.reshape(-1) - error.reshape(-1)).reshape(old.shape)


def _bias(layer: Layer) -> ir.Value | None:
    """The layer's own bias, or the constant of an Add that alone reads a MatMul."""
    found = layer.match.bias
    if found is None and layer.match.node.op_type == "MatMul":
        reader = only_reader(layer.match.node.outputs[0])
        parts = split_constant(reader) if reader is not None and reader.op_type == "Add" else None
        found = parts[1] if parts is not None else None
    outputs = layer.weights().shape[0] * layer.weights().shape[1]
    if found is None or not found.is_initializer() or len(found.uses()) != 1:
        return None
    tensor = constant(found)
    return found if tensor is not None and tensor.size == outputs else None


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_IN_NOTE} more" if len(names) > _NAMES_IN_NOTE else ""
    return ", ".join(names[:_NAMES_IN_NOTE]) + more
