"""Scales of INT32 biases: exactly input scale x weight scale, so that integer kernels add them.

Source: ONNX operator QLinearConv, input ``B``: "scale = x_scale * w_scale and zero_point = 0".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from fuseq.calibration.scales import Scale
from fuseq.errors import PlanError
from fuseq.placement.plan import Plan, QuantizedTensor

_BIAS_STEPS = 2.0**30
"""Largest INT32 bias allowed, half of the type's range: the products added to it need the rest."""


def bias_scales(
    plan: Plan, scales: Mapping[str, Scale], model: ir.Model | None = None
) -> dict[str, Scale]:
    """Scales of the plan's biases, and of the weights that had to be raised for them.

    A weight channel that is all but zero has so small a scale that its bias would overflow INT32.
    Its scale is raised until the bias takes 2^30 steps at most: the weights, below the step of
    every other channel, lose nothing that the output shows. (ONNX Runtime's quantizer does the same:
    ``_adjust_weight_scale_for_int32_bias``.)

    Args:
        plan: Its entries of kind ``bias``; each belongs to a region with one weight and one input.
        scales: Scales of activations and weights by group.
        model: The canonical float model with the biases; without it no scale is raised.

    Returns:
        Scales by group, to be merged over ``scales``: float32, shape ``(channels,)`` or ``()``.

    Raises:
        PlanError: A bias without an input or weight in its region, or without their scales.
    """
    biases = [entry for entry in plan.tensors if entry.kind == "bias"]
    partners = {entry.group: _partners(plan, entry) for entry in biases}
    raised: dict[str, Scale] = {}
    for entry in biases:
        data, weight = partners[entry.group]
        least = _least_weight_scale(entry, _scale(scales, data), model)
        known = raised.get(weight.group) or _scale(scales, weight)
        if least is not None and (known.scale < least).any():
            higher = np.maximum(known.scale, least).astype(np.float32)
            raised[weight.group] = Scale(higher, known.zero_point, known.format, known.axis)
    found = dict(raised)
    for entry in biases:
        data, weight = partners[entry.group]
        weight_scale = (raised.get(weight.group) or _scale(scales, weight)).scale
        product = (_scale(scales, data).scale * weight_scale).astype(np.float32)
        found[entry.group] = Scale(product, None, "int32", entry.axis)
    return found


def _partners(plan: Plan, bias: QuantizedTensor) -> tuple[QuantizedTensor, QuantizedTensor]:
    """The input and the weight of the node whose bias it is."""
    weight = next((e for e in plan.tensors if e.kind == "weight" and e.region == bias.region), None)
    if weight is not None and weight.uses:
        node = weight.uses[0].node
        for entry in plan.tensors:
            reads = any(use.node == node and use.index == 0 for use in entry.uses)
            if entry.kind == "activation" and reads:
                return entry, weight
    raise PlanError(
        f"plan stores bias {bias.tensor!r} as INT32, but {bias.region!r} has no quantized input and "
        "weight; quantize both, or leave the bias float."
    )


def _scale(scales: Mapping[str, Scale], entry: QuantizedTensor) -> Scale:
    scale = scales.get(entry.group)
    if scale is None:
        raise PlanError(
            f"no scale for group {entry.group!r} ({entry.tensor!r}); calibrate the plan's tensors."
        )
    return scale


def _least_weight_scale(
    entry: QuantizedTensor, data: Scale, model: ir.Model | None
) -> np.ndarray | None:
    """Smallest weight scale whose product with the input's holds the bias in INT32."""
    value = model.graph.initializers.get(entry.tensor) if model is not None else None
    if value is None or value.const_value is None:
        return None
    bias = np.abs(value.const_value.numpy().astype(np.float64))
    least = bias / _BIAS_STEPS / float(data.scale)
    return np.asarray(least if entry.axis is not None else least.max(initial=0.0))
