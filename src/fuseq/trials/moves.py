"""Moves: single changes of a plan, as data. Each can be applied, told in words, and found again.

1. ``leave``: a region goes back to float. 2. ``quantize``: a region that is in float is quantized.
3. ``store``: a tensor between operators without weights is stored in the format.
4. ``pair``, ``unpair``: a pair at an optional point (residual branch, pool input, an attention's Q,
   K, V or softmax output, a model's output) is added or taken away.
5. ``granularity``: a weight has one scale, or one a channel.
6. ``own scales``, ``one scale``: tensors that share a scale get their own, or share it again
   (products of one input that merge; both sides of a Concat or a pool).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from fuseq.placement.plan import Plan, QuantizedTensor, Region
from fuseq.trials.points import STORED, Points


@dataclasses.dataclass(frozen=True)
class Move:
    """One change of a plan.

    Attributes:
        kind: One of the words above; several joined by ``+`` for moves made together.
        subject: Region or tensor that it is about.
        detail: Tells moves of one kind on one subject apart, in words that equal blocks share.
        nodes: Nodes of the float graph whose kernels it may change.
        removed: Entries that leave the plan.
        added: Entries that enter it.
        regions: Regions as they become.
        says: What it does, for people.
    """

    kind: str
    subject: str
    detail: str
    nodes: tuple[str, ...]
    removed: tuple[QuantizedTensor, ...]
    added: tuple[QuantizedTensor, ...]
    regions: tuple[Region, ...]
    says: str

    def fits(self, plan: Plan) -> bool:
        """It still changes ``plan`` as it says: what it takes is there, what it adds is not."""
        present = set(plan.tensors)
        if not present.issuperset(self.removed):
            return False
        taken = {use for e in present.difference(self.removed) for use in e.uses}
        return not any(use in taken for entry in self.added for use in entry.uses)

    def apply(self, plan: Plan) -> Plan:
        """The changed plan; entries of a tensor that is quantized already join its scale group."""
        removed = set(self.removed)
        kept = tuple(entry for entry in plan.tensors if entry not in removed)
        groups = {(e.tensor, e.format): e.group for e in kept if e.kind == "activation"}
        added = tuple(
            dataclasses.replace(e, group=groups.get((e.tensor, e.format), e.group))
            if e.kind == "activation" and "scale" not in self.kind
            else e
            for e in self.added
        )
        changed = {region.name: region for region in self.regions}
        known = {region.name for region in plan.regions}
        regions = tuple(changed.get(region.name, region) for region in plan.regions)
        new = tuple(region for name, region in changed.items() if name not in known)
        return dataclasses.replace(plan, tensors=(*kept, *added), regions=(*regions, *new))


def together(moves: Sequence[Move]) -> Move:
    """Several moves as one."""
    if len(moves) == 1:
        return moves[0]
    kinds = list(dict.fromkeys(move.kind for move in moves))
    regions = {region.name: region for move in moves for region in move.regions}
    more = f" and {len(moves) - 1} more" if len(moves) > 2 else f"; {moves[1].says}"
    return Move(
        kind="+".join(kinds),
        subject=moves[0].subject,
        detail=" ".join(dict.fromkeys(move.detail for move in moves)),
        nodes=tuple(dict.fromkeys(node for move in moves for node in move.nodes)),
        removed=tuple(dict.fromkeys(entry for move in moves for entry in move.removed)),
        added=tuple(dict.fromkeys(entry for move in moves for entry in move.added)),
        regions=tuple(regions.values()),
        says=moves[0].says + more,
    )


def moves_from(plan: Plan, points: Points) -> list[Move]:
    """Every single move that ``plan`` allows, in a fixed order."""
    return [
        move
        for move in _all_moves(plan, points)
        if (move.removed or move.added) and move.fits(plan)
    ]


def _all_moves(plan: Plan, points: Points) -> Iterator[Move]:
    by_region: dict[str, list[QuantizedTensor]] = {}
    for entry in plan.tensors:
        by_region.setdefault(entry.region, []).append(entry)
    decided = {region.name: region for region in plan.regions}
    for name, region in points.regions.items():
        now = decided.get(name)
        if now is not None and now.quantized:
            yield _leave(now, by_region.get(name, []))
            yield from _pairs(now, by_region.get(name, []), points)
            yield from _granularity(now, by_region.get(name, []), plan, points)
        else:
            yield _quantize(region, points, plan)
    yield from _scale_moves(plan, points)


def _leave(region: Region, entries: Iterable[QuantizedTensor]) -> Move:
    left = dataclasses.replace(region, quantized=False, reason="float: found by search")
    says = f"leave {region.pattern} {region.name} in float"
    removed = tuple(entries)
    return Move("leave", region.name, region.pattern, region.nodes, removed, (), (left,), says)


def _quantize(region: Region, points: Points, plan: Plan) -> Move:
    kind = "store" if region.pattern == STORED else "quantize"
    entries = points.entries(region.name)
    if kind == "store":
        taken = {use for entry in plan.tensors for use in entry.uses}
        entries = tuple(
            dataclasses.replace(e, uses=tuple(use for use in e.uses if use not in taken))
            for e in entries
            if not taken.issuperset(e.uses)
        )
    added = tuple(e for e in entries if e.uses)
    says = (
        f"store {added[0].tensor if added else region.name} in {points.usual.format}"
        if kind == "store"
        else f"quantize {region.pattern} {region.name}"
    )
    made = (region,) if added else ()
    return Move(kind, region.name, region.pattern, region.nodes, (), added, made, says)


def _pairs(region: Region, entries: list[QuantizedTensor], points: Points) -> Iterator[Move]:
    present = {(entry.tensor, entry.uses) for entry in entries}
    for entry in points.optional(region.name):
        if (entry.tensor, entry.uses) not in present:
            yield _pair_move("pair", region, entry)
    single = len([e for e in entries if e.kind == "activation"]) == 1
    for entry in entries:
        own = any(use.node == region.name for use in entry.uses)
        if entry.kind == "activation" and not own and not single:
            yield _pair_move("unpair", region, entry)


def _pair_move(kind: str, region: Region, entry: QuantizedTensor) -> Move:
    where = ", ".join(f"{use.node or 'output'}:{use.index}" for use in entry.uses)
    nodes = tuple(dict.fromkeys((*(use.node for use in entry.uses), *region.nodes)))
    adds = kind == "pair"
    return Move(
        kind, region.name, f"{region.pattern}|{entry.reason.split(' ')[0]}|{entry.uses[0].index}",
        nodes, () if adds else (entry,), (entry,) if adds else (), (region,),
        f"{'put a' if adds else 'take the'} pair {'on' if adds else 'off'} {entry.tensor} ({where})",
    )  # fmt: skip


def _granularity(
    region: Region, entries: list[QuantizedTensor], plan: Plan, points: Points
) -> Iterator[Move]:
    for entry in entries:
        axis = points.channel_axes.get(entry.tensor)
        if entry.kind != "weight" or axis is None:
            continue
        members = [e for e in plan.tensors if e.group == entry.group and e.kind == "weight"]
        if members[0] is not entry:
            continue  # the first of a shared group moves it whole
        new_axis = axis if entry.axis is None else None
        changed = tuple(dataclasses.replace(e, axis=new_axis) for e in members)
        how = "a scale a channel" if entry.axis is None else "one scale"
        nodes = tuple(use.node for e in members for use in e.uses)
        yield Move(
            "granularity", region.name, f"{region.pattern}|{how}", nodes, tuple(members), changed,
            (), f"give the weight of {region.name} {how}",
        )  # fmt: skip


def _scale_moves(plan: Plan, points: Points) -> Iterator[Move]:
    shared = {(e.tensor, e.kind): e.group for e in (*points.wide.tensors, *points.usual.tensors)}
    apart: dict[str, list[QuantizedTensor]] = {}
    for group, entries in plan.groups().items():
        if len({entry.tensor for entry in entries}) > 1 and entries[0].known_amax is None:
            own = [dataclasses.replace(entry, group=entry.tensor) for entry in entries]
            yield _scale_move("own scales", entries, own, group)
        for entry in entries:
            usual = shared.get((entry.tensor, entry.kind), entry.group)
            if usual != entry.group:
                apart.setdefault(usual, []).append(entry)
    for group, entries in apart.items():
        joined = [dataclasses.replace(entry, group=group) for entry in entries]
        if len({(entry.format, entry.axis) for entry in entries}) == 1:
            yield _scale_move("one scale", entries, joined, group)


def _scale_move(
    kind: str, entries: list[QuantizedTensor], changed: list[QuantizedTensor], group: str
) -> Move:
    nodes = tuple(dict.fromkeys(use.node for entry in entries for use in entry.uses))
    names = ", ".join(dict.fromkeys(entry.tensor for entry in entries))
    says = f"give {names} {'their own scales' if kind == 'own scales' else 'one scale'}"
    kinds = f"{entries[0].kind}|{len(entries)}"
    return Move(kind, group, kinds, nodes, tuple(entries), tuple(changed), (), says)
