"""Scales of a plan's groups: weights from their values, activations from ranges, else placeholders."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from fuseq.calibration.limits import clip_range, scale_within
from fuseq.calibration.ranges import EMPTY, Range
from fuseq.calibration.scales import Scale, activation_scale, weight_scales
from fuseq.errors import PlanError
from fuseq.formats import Format, format_named
from fuseq.placement.plan import Plan, QuantizedTensor

STORED_AS: Mapping[str, ir.DataType] = {
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "fp32": ir.DataType.FLOAT,
}
"""A scale has the type of the tensor beside it: what stays float decides."""

_PLACEHOLDER_AMAX = 8.0
"""Range of activations where no data is given; a compiler fuses the same whatever it is."""


def constant_scales(
    plan: Plan, model: ir.Model, precision: str, method: str = "max"
) -> dict[str, Scale]:
    """Scales of the plan's weights by group; members of a group share the largest range.

    A weight in an asymmetric format is one number that an operator adds or multiplies by.

    Args:
        plan: Its weight entries are used.
        model: The canonical float model with the weights.
        precision: ``fp16``, ``bf16`` or ``fp32``: what the scale is stored as.
        method: ``max`` or ``mse``.

    Raises:
        PlanError: A weight of the plan is not a constant of the model.
        CalibrationError: A weight is NaN or infinite.
    """
    scales = {}
    for group, entries in plan.groups().items():
        if entries[0].kind != "weight":
            continue
        fmt, axis = format_named(entries[0].format), entries[0].axis
        if not fmt.symmetric:
            scales[group] = _exact_scale(_weight(entries[0], model), fmt, STORED_AS[precision])
            continue
        found = [
            weight_scales(_weight(entry, model), fmt, axis, method, STORED_AS[precision])
            for entry in _distinct(entries)
        ]
        scale = found[0] if len(found) == 1 else np.maximum.reduce(found)
        scales[group] = Scale(np.asarray(scale, dtype=np.float32), None, fmt.name, axis)
    return scales


def _exact_scale(number: np.ndarray, fmt: Format, stored_as: ir.DataType) -> Scale:
    """One number's scale and zero point: it is an end of its range, so nothing of it is rounded."""
    scale, zero_point = activation_scale(number.min(), number.max(), fmt, stored_as)
    return Scale(scale, zero_point, fmt.name)


def activation_scales(plan: Plan, ranges: Mapping[str, Range], precision: str) -> dict[str, Scale]:
    """Scales of the plan's activations by group, from the union of the members' ranges.

    A known range (softmax: 1) is used as it is; limits (ReLU6: 0 and 6) cut a range, and keep an
    asymmetric scale inside. Zero points are for asymmetric formats.
    """
    scales = {}
    for group, entries in plan.groups().items():
        if entries[0].kind != "activation":
            continue
        span = EMPTY
        for entry in entries:
            span = span.union(_range(entry, ranges))
        fmt, limits = format_named(entries[0].format), entries[0].limits
        if limits is not None:
            span = clip_range(span, limits)
        scale, zero_point = activation_scale(span.minimum, span.maximum, fmt, STORED_AS[precision])
        if limits is not None and not fmt.symmetric:
            scale = scale_within(scale, zero_point, fmt, limits)
        scales[group] = Scale(scale, None if fmt.symmetric else zero_point, fmt.name)
    return scales


def placeholder_scales(plan: Plan, precision: str = "fp16") -> dict[str, Scale]:
    """Scales to compile a plan with before there is data; never for a model that is written."""
    names = {entry.tensor for entry in plan.tensors if entry.kind == "activation"}
    ranges = {name: Range(-_PLACEHOLDER_AMAX, _PLACEHOLDER_AMAX) for name in names}
    return activation_scales(plan, ranges, precision)


def _range(entry: QuantizedTensor, ranges: Mapping[str, Range]) -> Range:
    if entry.known_amax is not None:
        return Range(0.0, entry.known_amax)
    return ranges.get(entry.tensor, EMPTY)


def _distinct(entries: list[QuantizedTensor]) -> list[QuantizedTensor]:
    return list({entry.tensor: entry for entry in entries}.values())


def _weight(entry: QuantizedTensor, model: ir.Model) -> np.ndarray:
    value = model.graph.initializers.get(entry.tensor)
    if value is None or value.const_value is None:
        raise PlanError(f"plan stores {entry.tensor!r} in {entry.format}, but it is no constant.")
    return np.asarray(value.const_value.numpy())
