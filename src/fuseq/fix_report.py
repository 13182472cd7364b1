"""What `fuseq fix` changed, as data: one entry for each scale of the file and of the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fuseq.calibration.carried_ranges import Carried
from fuseq.calibration.kept_ranges import change_of_format
from fuseq.calibration.scales import Scale
from fuseq.formats import format_named
from fuseq.passes.found_scales import FoundScale
from fuseq.passes.repairs import Repair
from fuseq.placement.plan import Plan, QuantizedTensor, Use

Action = Literal["kept", "removed", "added", "rescaled", "mended", "left float"]
ACTIONS: tuple[Action, ...] = ("removed", "added", "rescaled", "mended", "left float", "kept")


@dataclasses.dataclass(frozen=True)
class Change:
    """One thing that is different, or was kept.

    Attributes:
        action: ``kept``: the same scale bits for the tensor (rounded where another type stores
            them); ``rescaled``: quantized before and after with another scale; ``removed``, ``added``:
            a pair or a stored weight, for the readers named; ``mended``: a fault of the file;
            ``left float``: the plan wanted it, but no scale is known.
        tensor: Name in the float graph.
        kind: activation, weight, bias, or "" where it is about a node.
        nodes: Readers, or the nodes of the file that were mended.
        reason: In words.
        before: Largest scale in the file, None where it had none.
        after: Largest scale in the result, None where it has none.
    """

    action: Action
    tensor: str
    kind: str
    nodes: tuple[str, ...]
    reason: str
    before: float | None = None
    after: float | None = None


@dataclasses.dataclass(frozen=True)
class Ways:
    """Where the result's scales come from.

    Attributes:
        carried: Ranges of activations by tensor, from the file.
        measured: Tensors whose range comes from calibration data.
        weights: Why a weight group's scale is not the file's, by group.
        missing: Why the plan's entries without a scale were left out, by tensor.
    """

    carried: Mapping[str, Carried]
    measured: frozenset[str]
    weights: Mapping[str, str]
    missing: Mapping[str, str]


def changes_of(
    found: Sequence[FoundScale],
    repairs: Sequence[Repair],
    plan: Plan,
    scales: Mapping[str, Scale],
    ways: Ways,
) -> tuple[Change, ...]:
    """Compare the file's scales with the plan's, tensor by tensor and reader by reader."""
    entries: dict[tuple[str, str], list[QuantizedTensor]] = {}
    for entry in plan.tensors:
        entries.setdefault((entry.kind, entry.tensor), []).append(entry)
    before: dict[tuple[str, str], list[FoundScale]] = {}
    for scale in found:
        before.setdefault((scale.kind, scale.tensor), []).append(scale)
    changes = [
        Change("left float" if repair.fault == "left" else "mended", repair.tensor, "",
               repair.nodes, repair.text)
        for repair in repairs
    ]  # fmt: skip
    changes += [
        Change("left float", tensor, "activation", (), why) for tensor, why in ways.missing.items()
    ]
    for key, old in before.items():
        changes += _of_tensor(old, entries.get(key, []), plan, scales, ways)
    for key, new in entries.items():
        if key not in before:
            changes += _added(new, scales, ways)
    return tuple(changes)


def _of_tensor(
    old: Sequence[FoundScale],
    new: Sequence[QuantizedTensor],
    plan: Plan,
    scales: Mapping[str, Scale],
    ways: Ways,
) -> list[Change]:
    """A tensor that the file quantized."""
    size = max(float(np.nanmax(scale.by.scale)) for scale in old)
    had = tuple(dict.fromkeys(use for scale in old for use in scale.uses))
    has = tuple(dict.fromkeys(use for entry in new for use in entry.uses))
    tensor, kind = old[0].tensor, old[0].kind
    changes = []
    gone = [use for use in had if use not in has]
    if not new or gone:
        reason = _why_removed(old[0], gone or list(had), plan)
        changes.append(Change("removed", tensor, kind, _names(gone or list(had)), reason, size))
    if not new:
        return changes
    more = [use for use in has if use not in had]
    if more:
        reason = _reason(new, more)
        changes.append(Change("added", tensor, kind, _names(more), reason, None, size))
    after = scales[new[0].group]
    how = _how_rescaled(old, new[0], after, ways)
    largest = float(after.scale.max())
    action: Action = "rescaled" if how else "kept"
    changes.append(Change(action, tensor, kind, _names(has), how or "its scale", size, largest))
    return changes


def _how_rescaled(old: Sequence[FoundScale], new: QuantizedTensor, after: Scale, ways: Ways) -> str:
    """Why the scale is another one; "" where it is the file's."""
    if new.kind != "activation":
        return ways.weights.get(new.group, "")
    way = ways.carried.get(new.tensor)
    if way is not None and way.how:
        return way.how
    by = old[0].by
    fmt = format_named(new.format)
    if by.scale.size == 1 and np.array_equal(by.scale.reshape(()), after.scale):
        return ""
    if by.scale.size == 1 and abs(float(after.scale) / float(by.scale) - 1) <= 2.0**-11:
        return ""  # the type beside it stores it
    if new.group != new.tensor or not change_of_format(old[0], fmt):
        return "one scale for all tensors that hold the same values: the largest of theirs"
    return change_of_format(old[0], fmt)


def _why_removed(old: FoundScale, gone: Sequence[Use], plan: Plan) -> str:
    """The plan's words about the first reader, or that it has none."""
    if old.kind == "bias":
        return "a bias is float: the kernels add it after the products"
    for use in gone:
        for region in plan.regions:
            if use.node in region.nodes:
                if region.quantized:
                    return f"{region.pattern} {region.name} reads it in float"
                return region.reason
    if not gone or not gone[0].node:
        return "no kernel behind it reads it quantized"
    return f"no kernel of {plan.target} reads the input of {gone[0].node} quantized"


def _added(new: Sequence[QuantizedTensor], scales: Mapping[str, Scale], ways: Ways) -> list[Change]:
    """A tensor that the file had in float."""
    first = new[0]
    uses = [use for entry in new for use in entry.uses]
    if first.tensor in ways.measured:
        how = "scale calibrated"
    elif first.kind == "activation":
        way = ways.carried.get(first.tensor)
        how = (
            f"scale {way.certainty}: {way.how}" if way is not None else "scale known by definition"
        )
    else:
        how = f"scale computed: {ways.weights.get(first.group, 'from its values')}"
    reason = f"{first.reason}; {how}"
    largest = float(scales[first.group].scale.max())
    return [Change("added", first.tensor, first.kind, _names(uses), reason, None, largest)]


def _reason(entries: Sequence[QuantizedTensor], uses: Sequence[Use]) -> str:
    return next((e.reason for e in entries if uses[0] in e.uses), entries[0].reason)


def _names(uses: Sequence[Use]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(use.node or "(output)" for use in uses))
