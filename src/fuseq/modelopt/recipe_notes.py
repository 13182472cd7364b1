"""What to tell about a recipe: globs that matched nothing, layers that they excluded, what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fuseq.modelopt.places import Place
from fuseq.modelopt.quant_cfg import EVERYTHING, Applied, Entry, Recipe, Setting
from fuseq.placement.plan import Plan

_LISTED = 6
"""Names in one note; more would hide their number, which stands before them."""


def unmatched_notes(recipe: Recipe, applied: Applied) -> tuple[str, ...]:
    """One sentence for each glob that matches no quantizer of the model: it may be a typing error, or
    one of a stock recipe's globs for other architectures."""
    return tuple(
        f"quant_cfg {entry} matched no quantizer of this model."
        for entry, names in zip(recipe.entries, applied.matched, strict=True)
        if not names
    )


def excluded_notes(recipe: Recipe, applied: Applied) -> tuple[str, ...]:
    """One sentence for each glob that left layers with weights off, and for those nothing switched on."""
    notes = []
    for entry in dict.fromkeys(recipe.entries):
        layers = [] if entry.enable or entry.glob == EVERYTHING else _layers_off(applied, entry)
        if layers:
            notes.append(f"quant_cfg {entry} excluded {listed(layers, 'layer')}.")
    left = _layers_off(applied, None)
    if left:
        notes.append(f"the ModelOpt recipe switches nothing on in {listed(left, 'layer')}.")
    return tuple(notes)


def refusals(settings: Mapping[str, Setting]) -> tuple[str, ...]:
    """One sentence for each kind of quantizer that is on and has no equivalent here."""
    found: dict[str, list[str]] = {}
    for name, setting in settings.items():
        if setting.enabled and setting.attributes.problem:
            found.setdefault(setting.attributes.problem, []).append(name)
    return tuple(
        f"not taken over: {why} ({listed(names, 'quantizer')})." for why, names in found.items()
    )


def unplaced_notes(
    places: Sequence[Place], settings: Mapping[str, Setting], plan: Plan
) -> tuple[str, ...]:
    """One sentence for each reason why pairs that a recipe asks for are not in the plan.

    Weights and inputs of layers are told by their regions; these are the others: outputs, inputs of
    normalizations and pools, Q, K, V.
    """
    planned = {entry.tensor for entry in plan.tensors}
    reasons = {node: region for region in plan.regions for node in (region.name, *region.nodes)}
    found: dict[str, list[str]] = {}
    for place in places:
        setting = settings.get(place.quantizer)
        is_on = setting is not None and setting.enabled and not setting.attributes.problem
        if not is_on or place.match is not None or place.tensor in planned:
            continue
        region = reasons.get(place.region)
        if region is not None and not region.quantized and "output" not in place.quantizer:
            why = region.reason.removeprefix("float: ")
        else:
            why = "no kernel of the plan reads a quantized tensor there"
        found.setdefault(why, []).append(place.quantizer)
    return tuple(
        f"not in the plan: {listed(names, 'quantizer')}: {why}." for why, names in found.items()
    )


def unused_notes(unused: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each reason why quantizers of a checkpoint gave no scale."""
    found: dict[str, list[str]] = {}
    for name, why in unused.items():
        found.setdefault(why, []).append(name)
    return tuple(
        f"not taken over: {listed(names, 'quantizer')}: {why}." for why, names in found.items()
    )


def listed(names: Iterable[str], what: str) -> str:
    """``3 layers (a, b, c)``, with ``...`` where there are more than fit."""
    everyone = list(dict.fromkeys(names))
    shown = ", ".join(everyone[:_LISTED]) + (", ..." if len(everyone) > _LISTED else "")
    plural = "" if len(everyone) == 1 else "s"
    return f"{len(everyone)} {what}{plural} ({shown})"


def _layers_off(applied: Applied, entry: Entry | None) -> list[str]:
    """Modules whose weight quantizer ``entry`` left off; None: the rule for everything, or no rule."""
    return [
        name.rpartition(".")[0]
        for name, setting in applied.settings.items()
        if name.endswith("weight_quantizer")
        and not setting.enabled
        and (setting.by == entry if entry is not None else not setting.is_excluded)
    ]
