"""Ranges of a plan's activations from the scales that a quantized file has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from fuseq.calibration.carried_ranges import Carried, find_range
from fuseq.calibration.observed import values_by_name
from fuseq.calibration.ranges import EMPTY, Range
from fuseq.formats import Format
from fuseq.passes.found_scales import FoundScale
from fuseq.passes.matching import is_op, scalar, split_constant

_STEPS = 8
_SAME_FACTOR = 1e-6


@dataclasses.dataclass(frozen=True)
class FileScales:
    """A file's scales in its own float graph and in the canonical one.

    Attributes:
        stripped: The float graph as the file has it; read only.
        canonical: The canonical float graph.
        in_file: Scales by the names of ``stripped``.
        now: Scales by the names of ``canonical``.
    """

    stripped: ir.Graph
    canonical: ir.Graph
    in_file: Sequence[FoundScale]
    now: Sequence[FoundScale]


def kept_ranges(tensors: Iterable[str], scales: FileScales, fmt: Format) -> dict[str, Carried]:
    """Ranges of ``tensors`` of the canonical graph, where the file tells one.

    1. The tensor's own scale. Several scales of one tensor become the one of the largest range.
    2. One carried to it (:mod:`fuseq.calibration.carried_ranges`) in the file's graph, where the
       tensor has the same name, or in the canonical graph; the more certain of both.
    3. Where the canonical form moved a constant factor from one tensor to another (the scale of
       attention, which then stands on Q alone), the range is multiplied along.
    """
    before, now = values_by_name(scales.stripped), values_by_name(scales.canonical)
    own = _corrected(_known(scales.now, fmt), scales, before, now)
    old = _known(scales.in_file, fmt)
    found: dict[str, Carried] = {}
    for name in tensors:
        value = now.get(name)
        if value is None:
            continue
        if name in own:
            found[name] = own[name]
            continue
        ways = [find_range(value, own)]
        if name in before:
            carried = find_range(before[name], old)
            ways.append(_times(carried, _factor(before[name], value)))
        given = [way for way in ways if way is not None]
        if given:
            found[name] = min(given, key=lambda way: _RANK[way.certainty])
    return found


_RANK: Mapping[str, int] = {"same": 0, "bound": 1, "estimate": 2}


def _known(scales: Sequence[FoundScale], fmt: Format) -> dict[str, Carried]:
    by_tensor: dict[str, list[FoundScale]] = {}
    for scale in scales:
        if scale.kind == "activation":
            by_tensor.setdefault(scale.tensor, []).append(scale)
    return {name: _one(several, fmt) for name, several in by_tensor.items()}


def _one(scales: list[FoundScale], fmt: Format) -> Carried:
    span = EMPTY
    for scale in scales:
        span = span.union(scale.range_for(fmt))
    how = change_of_format(scales[0], fmt)
    if len(scales) > 1:
        how = f"the largest of the {len(scales)} scales that the file has for it"
    return Carried(span, "same", how)


def change_of_format(scale: FoundScale, fmt: Format) -> str:
    """In words, what becomes of a scale that ``fmt`` cannot keep as it is; "" where it can."""
    by = scale.by
    if by.axis is not None:
        return "one scale for all channels: no kernel reads an activation with a scale a channel"
    if fmt.symmetric and not scale.is_centred:
        return (
            f"{by.format} with zero point {int(by.zero_point)} recentred: "
            "amax = max(|lowest|, |highest|) of its range"
        )
    if by.format != fmt.name and not (fmt.name == "int8" and by.format == "uint8"):
        if scale.reach < 1:
            return (
                f"{by.format} to {fmt.name} with the same largest magnitude, which is "
                f"{scale.reach:.3g} of its range as in the file's weights"
            )
        return f"{by.format} to {fmt.name} with the same largest magnitude"
    return ""


def _corrected(
    own: dict[str, Carried],
    scales: FileScales,
    before: Mapping[str, ir.Value],
    now: Mapping[str, ir.Value],
) -> dict[str, Carried]:
    """Case 3, for tensors that have a scale of their own."""
    names_in_file = _names_in_file(scales)
    corrected = {}
    for name, carried in own.items():
        factor = 1.0
        old_name = names_in_file.get(name, name)
        if old_name != name and name in before and old_name in before:
            factor = 1 / _factor_between(before[name], before[old_name])
        elif name in before and name in now:
            factor = _factor(before[name], now[name])
        corrected[name] = _times(carried, factor) or carried
    return corrected


def _names_in_file(scales: FileScales) -> dict[str, str]:
    """Name in the file of each tensor that has another name now, told by its Q/DQ nodes."""
    old = {scale.nodes: scale.tensor for scale in scales.in_file if scale.kind == "activation"}
    return {
        scale.tensor: old[scale.nodes]
        for scale in scales.now
        if scale.kind == "activation" and old.get(scale.nodes, scale.tensor) != scale.tensor
    }


def _factor_between(start: ir.Value, end: ir.Value) -> float:
    """Product of the numbers that ``start`` is multiplied by on its way to ``end``; 1 if it is not."""
    factor, value = 1.0, end
    for _ in range(_STEPS):
        if value is start:
            return factor
        node = value.producer()
        if node is None or node.domain != "" or not node.inputs or node.inputs[0] is None:
            return 1.0
        number = _multiplier(node)
        if number is not None:
            factor *= number
            parts = split_constant(node)
            value = parts[0] if parts is not None else node.inputs[0]
        else:
            value = node.inputs[0]
    return 1.0


def _factor(old: ir.Value, new: ir.Value) -> float:
    """How much larger a tensor is than under the same name before: both are Mul by a number."""
    makers = (old.producer(), new.producer())
    numbers = [_multiplier(node) if node is not None else None for node in makers]
    if numbers[0] is None or numbers[1] is None or numbers[0] == 0:
        return 1.0
    factor = numbers[1] / numbers[0]
    return factor if abs(factor - 1) > _SAME_FACTOR else 1.0


def _multiplier(node: ir.Node) -> float | None:
    parts = split_constant(node) if is_op(node, "Mul") else None
    return scalar(parts[1]) if parts is not None else None


def _times(carried: Carried | None, factor: float) -> Carried | None:
    if carried is None or factor == 1.0:
        return carried
    ends = (carried.range.minimum * factor, carried.range.maximum * factor)
    how = f"{carried.how}, " if carried.how else ""
    return Carried(
        Range(min(ends), max(ends)),
        carried.certainty,
        f"{how}times {factor:.6g}, a constant factor that moved to another tensor",
    )
