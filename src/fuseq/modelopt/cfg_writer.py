"""Write a plan as ModelOpt's globs, for teams that stay with ModelOpt and want fuseq's placement."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import onnx_ir as ir

from fuseq.modelopt.places import Place, quantizer_places
from fuseq.placement.plan import Plan, QuantizedTensor, Use

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_BITS: Mapping[str, Any] = {"int8": 8, "fp8": (4, 3)}
_OF_ATTENTION = ("q_bmm_quantizer", "k_bmm_quantizer", "v_bmm_quantizer")
_SOFTMAX = "p_bmm_quantizer"

Attributes = tuple[Any, int | None]
"""(num_bits, axis)."""


@dataclasses.dataclass(frozen=True)
class WrittenRecipe:
    """A configuration for ``mtq.quantize``.

    Attributes:
        config: ``{"quant_cfg": [...], "algorithm": "max"}``; everything is off that is not planned.
        quantizers: (num_bits, axis) by path of each quantizer that is on.
        notes: Pairs of the plan that no quantizer of ModelOpt can make, and what is only similar.
    """

    config: dict[str, Any]
    quantizers: Mapping[str, Attributes]
    notes: tuple[str, ...]


def write_recipe(plan: Plan, model: ir.Model) -> WrittenRecipe:
    """Find the quantizers that stand where ``plan`` has pairs, and write globs that switch on these.

    1. A weight: the ``weight_quantizer`` of its module, of each module where layers were merged.
    2. A tensor for a layer, pool or attention: the reader's ``input_quantizer`` or ``*_bmm_quantizer``.
    3. A tensor for an Add or another function: the ``output_quantizer`` of the module that makes it,
       where every reader of the tensor sees it quantized.
    4. Paths that differ in a layer number alone become one glob, where that glob matches no other
       quantizer of the model.

    Args:
        plan: Made for ``model``.
        model: The canonical float graph of the plan.
    """
    places = [place for place in quantizer_places(model) if place.exists_in_modelopt]
    found: dict[str, Attributes] = {}
    notes: list[str] = []
    readers = _readers(model)
    for entry in plan.tensors:
        if entry.kind == "bias" or entry.format not in _BITS:
            notes.append(
                f"{entry.tensor}: {entry.kind} in {entry.format} is not ModelOpt's to store."
            )
            continue
        missed: tuple[Use, ...] = ()
        if entry.kind == "weight":
            chosen = _for_weight(entry, places)
        else:
            chosen, missed = _for_activation(entry, plan, places, readers)
        axis = _module_axis(entry, places)
        found.update(dict.fromkeys(chosen, (_BITS[entry.format], axis)))
        notes += [_missing(entry, use) for use in missed]
        if entry.kind == "weight" and not chosen:
            notes.append(f"{entry.tensor}: no weight quantizer of ModelOpt's belongs to it.")
    notes += _shared_notes(plan, places)
    known = {place.quantizer for place in places}
    quant_cfg = [{"quantizer_name": "*", "enable": False}, *_entries(found, known)]
    config = {"quant_cfg": quant_cfg, "algorithm": "max"}
    return WrittenRecipe(config, found, tuple(dict.fromkeys(notes)))


def _readers(model: ir.Model) -> dict[str, set[Use]]:
    found: dict[str, set[Use]] = {}
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if value is not None:
                found.setdefault(value.name or "", set()).add(Use(node.name or "", index))
    for number, value in enumerate(model.graph.outputs):
        found.setdefault(value.name or "", set()).add(Use("", number))
    return found


def _for_weight(entry: QuantizedTensor, places: Sequence[Place]) -> list[str]:
    """Case 1."""
    return [
        place.quantizer
        for place in places
        if place.kind == "weight"
        and place.tensor == entry.tensor
        and set(place.uses) & set(entry.uses)
    ]


def _for_activation(
    entry: QuantizedTensor, plan: Plan, places: Sequence[Place], readers: Mapping[str, set[Use]]
) -> tuple[list[str], tuple[Use, ...]]:
    """Cases 2 and 3: the quantizers, and the readers that none stands before."""
    chosen: list[str] = []
    missed: list[Use] = []
    outputs = [
        place.quantizer
        for place in places
        if place.quantizer.endswith(".output_quantizer") and place.tensor == entry.tensor
    ]
    quantized = {
        use for other in plan.tensors if other.tensor == entry.tensor for use in other.uses
    }
    for use in entry.uses:
        before = _before_reader(entry, use, places)
        if before:
            chosen += before
        elif outputs and readers.get(entry.tensor, set()) <= quantized:
            chosen += outputs[:1]
        else:
            missed.append(use)
    return list(dict.fromkeys(chosen)), tuple(missed)


def _before_reader(entry: QuantizedTensor, use: Use, places: Sequence[Place]) -> list[str]:
    """Case 2. One pair before a Split into Q, K and V is the three quantizers behind it."""
    region = [place for place in places if place.region == entry.region]
    attention = [place.quantizer for place in region if place.quantizer.endswith(_OF_ATTENTION)]
    if attention and use.node not in {u.node for place in region for u in place.uses}:
        return attention
    found = []
    for place in places:
        leaf = place.quantizer.rpartition(".")[2]
        is_input = leaf in ("input_quantizer", _SOFTMAX, *_OF_ATTENTION)
        scaled_query = leaf == _OF_ATTENTION[0] and place.region == entry.region
        reads = use in place.uses or (scaled_query and use.index == 0 and _is_scores(use, region))
        if is_input and place.kind == "activation" and reads:
            found.append(place.quantizer)
    return found


def _is_scores(use: Use, region: Sequence[Place]) -> bool:
    """The reader is the product that K enters as well: its left side is Q, scaled."""
    return any(
        place.quantizer.endswith(_OF_ATTENTION[1]) and place.uses[0].node == use.node
        for place in region
    )


def _module_axis(entry: QuantizedTensor, places: Sequence[Place]) -> int | None:
    """The channel axis as the module stores its weight: ConvTranspose ``[I, O]``, the others ``[O, I]``."""
    if entry.axis is None:
        return None
    matches = [place.match for place in places if place.tensor == entry.tensor and place.match]
    is_transposed = any(match.node.op_type == "ConvTranspose" for match in matches)
    return 1 if is_transposed else 0


def _missing(entry: QuantizedTensor, use: Use) -> str:
    return (
        f"{entry.tensor} for {use.node or 'the output'}: no quantizer of ModelOpt stands there; "
        f"planned because {entry.reason}."
    )


def _shared_notes(plan: Plan, places: Sequence[Place]) -> list[str]:
    """Weights that share one scale in the plan have one each in ModelOpt."""
    notes = []
    for group, entries in plan.groups().items():
        if entries[0].kind != "weight" or entries[0].axis is not None:
            continue
        names = {name for entry in entries for name in _for_weight(entry, places)}
        if len(names) > 1:
            notes.append(
                f"{group}: the plan gives {len(names)} weights one scale, so that they merge into one "
                "product; ModelOpt gives each its own."
            )
    return notes


def _entries(found: Mapping[str, Attributes], known: Iterable[str]) -> list[dict[str, Any]]:
    """Case 4."""
    everyone = {*known, *found}
    groups: dict[tuple[str, Attributes], list[str]] = {}
    for name, attributes in found.items():
        groups.setdefault((_NUMBER.sub("*", name), attributes), []).append(name)
    entries = []
    for (glob, (bits, axis)), names in groups.items():
        matched = {name for name in everyone if fnmatch(name, glob)}
        globs = [glob] if len(names) > 1 and matched == set(names) else [_literal(n) for n in names]
        cfg = {"num_bits": bits, "axis": axis}
        entries += [{"quantizer_name": each, "cfg": dict(cfg)} for each in globs]
    return entries


def _literal(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
