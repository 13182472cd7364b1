"""Scales of a plan's groups from a file's scales: kept bit for bit wherever the plan allows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from fuseq.calibration.carried_ranges import Carried
from fuseq.calibration.scales import SMALLEST_SCALE, Scale
from fuseq.calibration.tensor_scales import STORED_AS, activation_scales, constant_scales
from fuseq.formats import Format, format_named
from fuseq.passes.found_scales import FoundScale
from fuseq.placement.plan import Plan, QuantizedTensor


@dataclasses.dataclass(frozen=True)
class KeptWeights:
    """Weight scales by group, and for those that are not the file's own, why."""

    scales: Mapping[str, Scale]
    changed: Mapping[str, str]


def kept_weight_scales(
    plan: Plan, model: ir.Model, found: Sequence[FoundScale], precision: str
) -> KeptWeights:
    """Scale of each weight group of ``plan``.

    1. The file's own, where the weight has one in the plan's format, per tensor or on the plan's
       axis; one scale serves all channels where the plan has one a channel. The stored integers are
       then the file's own bit for bit.
    2. Else computed from the weight, which holds what the file's integers stand for.

    The file's scale is rounded to the type that stores it (:func:`stored_scale`).
    """
    by_tensor: dict[str, list[FoundScale]] = {}
    for scale in found:
        if scale.kind == "weight":
            by_tensor.setdefault(scale.tensor, []).append(scale)
    scales: dict[str, Scale] = {}
    changed: dict[str, str] = {}
    for group, entries in plan.groups().items():
        if entries[0].kind != "weight":
            continue
        kept = _kept(entries, by_tensor, model, precision)
        if isinstance(kept, Scale):
            scales[group] = kept
        else:
            changed[group] = kept
    rest = dataclasses.replace(plan, tensors=tuple(t for t in plan.tensors if t.group in changed))
    return KeptWeights({**scales, **constant_scales(rest, model, precision)}, changed)


def _kept(
    entries: Sequence[QuantizedTensor],
    by_tensor: Mapping[str, list[FoundScale]],
    model: ir.Model,
    precision: str,
) -> Scale | str:
    """The scale to keep, or why there is none."""
    fmt, axis = format_named(entries[0].format), entries[0].axis
    kept: np.ndarray | None = None
    for name in dict.fromkeys(entry.tensor for entry in entries):
        own = by_tensor.get(name, [])
        if not own:
            return "the weight had no scale"
        if len(own) > 1:
            return f"the weight had {len(own)} scales"
        by = own[0].by
        if not _is_format(own[0], fmt, model):
            return f"it was stored as {by.format}, the kernel wants {fmt.name}"
        if not own[0].is_centred:
            return "its zero point was not 0"
        if by.axis is not None and by.axis != axis:
            place = "one for the whole weight" if axis is None else f"one a channel of axis {axis}"
            return f"it had one scale a channel of axis {by.axis}, the kernel wants {place}"
        if kept is not None and not np.array_equal(kept, by.scale):
            return "weights that share one scale here had different ones"
        kept = by.scale
    if kept is None:
        return "the weight had no scale"
    if axis is not None and kept.ndim == 0:
        value = model.graph.initializers[entries[0].tensor]
        size = value.shape.numpy()[axis] if value.shape is not None else 1
        kept = np.full(size, kept, np.float32)
    return Scale(stored_scale(kept, precision), None, fmt.name, axis)


def _is_format(found: FoundScale, fmt: Format, model: ir.Model) -> bool:
    """Whether the stored integers are ones of ``fmt``: UINT8 around 128 is INT8, and INT8 is INT7
    where none lies beyond its range."""
    by = found.by
    if by.format == fmt.name or (by.format, fmt.name) == ("uint8", "int8"):
        return True
    if by.stored != fmt.dtype or not fmt.symmetric or found.tensor not in model.graph.initializers:
        return False
    tensor = model.graph.initializers[found.tensor].const_value
    if tensor is None:
        return False
    magnitudes = np.abs(np.moveaxis(tensor.numpy(), by.axis or 0, 0))
    rows = magnitudes.reshape(by.scale.size, -1).max(1, initial=0.0)
    return bool((np.rint(rows / by.scale.reshape(-1)) <= fmt.qmax).all())


def stored_scale(scale: np.ndarray, precision: str) -> np.ndarray:
    """``scale`` as the type beside it stores it, float32: unchanged where it fits exactly.

    Rounding to FP16 changes it by 2^-11 at most, which moves no integer of 8 bits: 127 x 2^-11 is
    less than half a step. Below FP16's normal values it is raised to the smallest of them.
    """
    kind = STORED_AS[precision]
    narrow = np.asarray(scale, np.float32).astype(kind.numpy()).astype(np.float32)
    floor = np.float32(SMALLEST_SCALE[kind])
    raised = np.where((narrow != scale) & (scale < floor), floor, narrow)
    return np.asarray(raised, dtype=np.float32)


def kept_activation_scales(
    plan: Plan, carried: Mapping[str, Carried], found: Sequence[FoundScale], precision: str
) -> dict[str, Scale]:
    """Scale of each activation group of ``plan``, from ranges that hold the file's scales.

    A group whose members all have the same symmetric scale in the file keeps its bits even where it
    lies below the smallest normal FP16 value.
    """
    ranges = {name: each.range for name, each in carried.items()}
    scales = activation_scales(plan, ranges, precision)
    own: dict[str, list[FoundScale]] = {}
    for scale in found:
        if scale.kind == "activation":
            own.setdefault(scale.tensor, []).append(scale)
    for group, entries in plan.groups().items():
        kept = _same_symmetric(entries, own, carried)
        if kept is not None:
            scales[group] = Scale(stored_scale(kept, precision), None, entries[0].format)
    return scales


def _same_symmetric(
    entries: Sequence[QuantizedTensor],
    own: Mapping[str, list[FoundScale]],
    carried: Mapping[str, Carried],
) -> np.ndarray | None:
    kept: np.ndarray | None = None
    for entry in entries:
        scales, way = own.get(entry.tensor, []), carried.get(entry.tensor)
        if entry.kind != "activation" or not format_named(entry.format).symmetric:
            return None
        if len(scales) != 1 or way is None or way.how or entry.known_amax is not None:
            return None
        if kept is not None and scales[0].by.scale != kept:
            return None
        kept = scales[0].by.scale
    return kept
