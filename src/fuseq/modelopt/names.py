"""Match the tensor names of a checkpoint with those of a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from fuseq.modelopt.checkpoint import Checkpoint
from fuseq.modelopt.quant_cfg import Recipe


def renamed(checkpoint: Checkpoint, own: Collection[str]) -> Checkpoint:
    """Give a checkpoint the names of a module's ``state_dict``.

    1. A name that the module has stays.
    2. Else leading parts are dropped until the module has it: transformers writes
       ``text_model.text_model.encoder`` for a model whose attribute is ``text_model.encoder``.
    3. Else it is the one name of the module that ends in it: a checkpoint of a part.
    4. What fits nowhere keeps its name; quantizers follow the weights of their module.

    Args:
        checkpoint: With the names of its files.
        own: Names of the module's parameters and buffers.
    """
    moved = _prefixes(checkpoint.weights, own)
    if not moved:
        return checkpoint
    quantizers = {
        (name := _moved(stored.name, moved)): dataclasses.replace(stored, name=name)
        for stored in checkpoint.quantizers.values()
    }
    entries = tuple(
        dataclasses.replace(entry, glob=_moved(entry.glob, moved))
        for entry in checkpoint.recipe.entries
    )
    return dataclasses.replace(
        checkpoint,
        weights={_moved(name, moved): array for name, array in checkpoint.weights.items()},
        quantizers=quantizers,
        recipe=Recipe(entries, checkpoint.recipe.notes),
    )


def _prefixes(stored: Collection[str], own: Collection[str]) -> dict[str, str]:
    """New prefix by old prefix, both with their dot, of the names that the module spells otherwise."""
    known = set(own)
    moved: dict[str, str] = {}
    for name in stored:
        if name in known or any(name.startswith(old) for old in moved):
            continue
        parts = name.split(".")
        dropped = next((n for n in range(1, len(parts)) if ".".join(parts[n:]) in known), None)
        if dropped is not None:
            dot = "" if dropped == len(parts) - 1 else "."
            moved[".".join(parts[: dropped + 1]) + dot] = parts[dropped] + dot
            continue
        longer = [each for each in known if each.endswith(f".{name}")]
        if len(longer) == 1:
            moved[f"{parts[0]}."] = longer[0].removesuffix(name) + f"{parts[0]}."
    return moved


def _moved(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
