"""A checkpoint's ranges as scales of tensors of the exported graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from fuseq.formats import FP8, INT8, Format
from fuseq.modelopt.checkpoint import Checkpoint, StoredQuantizer
from fuseq.modelopt.places import Place
from fuseq.modelopt.weight_layout import Layout, layout_of
from fuseq.passes.found_scales import FoundScale
from fuseq.passes.quantizers import Quantizer


@dataclasses.dataclass(frozen=True)
class Found:
    """Scales by tensor, and what became of quantizers that gave none.

    Attributes:
        scales: One for each quantized tensor of the graph.
        unused: Why a quantizer that is on gave no scale, by its path.
    """

    scales: tuple[FoundScale, ...]
    unused: Mapping[str, str]


def find_scales(model: ir.Model, checkpoint: Checkpoint, places: Sequence[Place]) -> Found:
    """Turn every quantizer that is on into the scale of its tensor.

    1. ``scale = amax / qmax``, 448 for FP8 and 127 for INT8, which is what ModelOpt exports.
    2. Weights: the axis is moved to where the exporter put it; where a BatchNorm was folded into
       the weight, the range is multiplied along (:mod:`fuseq.modelopt.weight_layout`).
    3. Layers that were merged give one weight whose ranges stand side by side.
    4. What is left over is named with its reason: no tensor in the graph, no range, a format that
       is not one of an engine's Q/DQ.
    """
    unused: dict[str, str] = {}
    found: list[FoundScale] = []
    rescaled: set[str] = set()
    seen: set[str] = set()
    for place in places:
        if place.kind == "weight" and place.part == 0:
            scale = _weight_scale(model, checkpoint, place, unused, rescaled)
            if scale is not None:
                found.append(scale)
    for place in places:
        stored = checkpoint.quantizers.get(place.quantizer)
        if stored is None or not stored.enabled:
            continue
        seen.add(place.quantizer)
        if place.kind != "activation":
            continue
        why = _unusable(stored)
        if not why and place.quantizer.endswith("output_quantizer") and place.region in rescaled:
            why = "a BatchNorm was folded into its layer, whose own output is no tensor any more"
        if why:
            unused[place.quantizer] = why
            continue
        by = _quantizer(np.asarray(stored.amax), stored, None)
        found.append(FoundScale(place.tensor, "activation", by, place.uses, (place.quantizer,)))
    for name, stored in checkpoint.quantizers.items():
        if stored.enabled and name not in seen:
            unused[name] = "the exported graph has no tensor of its module (folded, or never run)"
    return Found(_distinct(found), unused)


def format_of(stored: StoredQuantizer) -> Format:
    """FP8 or INT8."""
    return FP8 if stored.attributes.format == "fp8" else INT8


def _unusable(stored: StoredQuantizer) -> str:
    """Case 4."""
    if stored.problem:
        return stored.problem
    if stored.amax is None:
        return "it has no range: calibration never reached it"
    if not np.isfinite(stored.amax).all() or not (stored.amax > 0).all():
        return "its range is 0, NaN or infinite"
    return ""


def _quantizer(amax: np.ndarray, stored: StoredQuantizer, axis: int | None) -> Quantizer:
    """Case 1."""
    fmt = format_of(stored)
    if axis is None and amax.ndim:
        amax = amax.max()
    scale = fmt.scale_of(amax)
    return Quantizer(scale, np.zeros(scale.shape, np.int64), fmt.dtype, axis)


def _weight_scale(
    model: ir.Model,
    checkpoint: Checkpoint,
    place: Place,
    unused: dict[str, str],
    rescaled: set[str],
) -> FoundScale | None:
    """Cases 2 and 3."""
    match = place.match
    if match is None or match.weight.const_value is None:
        return None
    stored = [checkpoint.quantizers.get(f"{path}.weight_quantizer") for path in place.parts]
    layout = layout_of(match, [checkpoint.weights.get(f"{path}.weight") for path in place.parts])
    if isinstance(layout, Layout) and layout.is_rescaled:
        rescaled.add(place.region)
    quantizers = [each for each in stored if each is not None and each.enabled]
    if not quantizers:
        return None
    why = next((reason for each in quantizers if (reason := _unusable(each))), "")
    if not why and len(quantizers) < len(place.parts):
        why = "the layers that it was merged with are not quantized"
    if not why and len({each.attributes.format for each in quantizers}) > 1:
        why = "the layers that it was merged with have another format"
    if not why and isinstance(layout, str):
        why = layout
    if why or isinstance(layout, str):
        unused.update(dict.fromkeys((each.name for each in quantizers), why))
        return None
    amax, axis = layout.ranges([each.amax for each in quantizers], [_axis(e) for e in quantizers])
    by = _quantizer(amax, quantizers[0], axis)
    names = tuple(each.name for each in quantizers)
    return FoundScale(place.tensor, "weight", by, place.uses, names)


def _axis(stored: StoredQuantizer) -> int | None:
    axis = stored.attributes.axis
    return axis if isinstance(axis, int) and stored.amax is not None and stored.amax.ndim else None


def _distinct(found: Sequence[FoundScale]) -> tuple[FoundScale, ...]:
    """One scale for a tensor that several quantizers see with the same range (Q, K and V inputs)."""
    known: dict[tuple[object, ...], FoundScale] = {}
    for scale in found:
        by = scale.by
        key = (scale.tensor, scale.kind, by.scale.tobytes(), by.stored, by.axis)
        one = known.get(key)
        known[key] = scale if one is None else _joined(one, scale)
    return tuple(known.values())


def _joined(one: FoundScale, other: FoundScale) -> FoundScale:
    return dataclasses.replace(
        one,
        uses=tuple(dict.fromkeys((*one.uses, *other.uses))),
        nodes=tuple(dict.fromkeys((*one.nodes, *other.nodes))),
    )
