"""Read ModelOpt's ``quant_cfg`` in both spellings, and say what it makes of each quantizer.

Checked against ModelOpt 0.47 (``benchmarks/modelopt_artefacts.py`` records what the real one does):

1. List: ``{"quantizer_name": glob, "cfg": {...}, "enable": bool, "parent_class": "nn.Conv2d"}``, or one
   ``{glob: {...}}`` an entry. Entries are applied in order, a later one wins.
2. Dict: ``{glob: {...}, "nn.Conv2d": {glob: {...}}, "default": {...}}``, in the dict's order, except that
   ``default`` comes first wherever it stands, as in the releases whose spelling this is (0.33). 0.47
   reads it at its place, where a last ``"default": {"enable": False}`` switches everything off.
3. An entry with attributes replaces all attributes of what it matches, and switches it on unless it
   says ``enable: False``; an entry with ``enable`` alone only switches.
4. Globs are those of ``fnmatch``, matched against the whole path of a quantizer; ``*`` crosses dots.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuseq.errors import OptionError

EVERYTHING = "*"
_ENTRY_KEYS = frozenset({"quantizer_name", "cfg", "enable", "parent_class"})


@dataclasses.dataclass(frozen=True)
class Attributes:
    """What a quantizer does.

    Attributes:
        num_bits: 8, ``(4, 3)`` for FP8 E4M3, or what else the file says.
        axis: Channel axis, None per tensor; a tuple of axes is kept as it is, to be refused.
        others: Attributes that are not at their defaults, as ``name=value``.
    """

    num_bits: object = 8
    axis: object = None
    others: tuple[str, ...] = ()

    @property
    def format(self) -> str:
        """``int8`` or ``fp8``; "" where fuseq has no such format."""
        if self.num_bits == 8 and not isinstance(self.num_bits, bool):
            return "int8"
        return "fp8" if self.num_bits == (4, 3) else ""

    @property
    def problem(self) -> str:
        """Why fuseq cannot quantize like that, in words; "" when it can."""
        if not self.format:
            return f"num_bits {self.num_bits!r} is neither 8 nor (4, 3)"
        if self.axis is not None and (
            isinstance(self.axis, bool) or not isinstance(self.axis, int)
        ):
            return f"axis {self.axis!r} is neither one axis nor None"
        if self.others:
            return f"{', '.join(self.others)} has no equivalent in an engine's Q/DQ"
        return ""


_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "type": ("static",),
    "block_sizes": (None,),
    "bias": (None,),
    "unsigned": (False,),
    "rotate": (False, None),
    "backend": (None,),
    "use_constant_amax": (False,),
    "constant_amax": (None,),
}
"""Attributes that change the numbers, with the values that change nothing. The others (narrow_range,
calibrator, pass_through_bwd ...) concern calibration, training or the spelling of an export."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry: a glob and what it does.

    Attributes:
        glob: Matched against the paths of quantizers.
        parent_class: Only quantizers of modules of this class (``nn.Conv2d``), "" for all.
        attributes: Replaces all attributes, None where the entry only switches.
        enable: On or off.
    """

    glob: str
    parent_class: str
    attributes: Attributes | None
    enable: bool

    def __str__(self) -> str:
        scope = f"{self.parent_class}: " if self.parent_class else ""
        return f"'{scope}{self.glob}'"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Entries in the order in which they are applied, and what there is to say about their reading."""

    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()


def read_recipe(quant_cfg: object) -> Recipe:
    """Read a ``quant_cfg``, or a whole configuration that has one under that key.

    Raises:
        OptionError: Neither a list nor a dict, or an entry that ModelOpt would not take either.
    """
    if isinstance(quant_cfg, Mapping) and "quant_cfg" in quant_cfg:
        quant_cfg = quant_cfg["quant_cfg"]
    if isinstance(quant_cfg, Mapping):
        return _from_dict(quant_cfg)
    if isinstance(quant_cfg, Sequence) and not isinstance(quant_cfg, str | bytes):
        entries = [entry for number, raw in enumerate(quant_cfg) for entry in _listed(number, raw)]
        return Recipe(tuple(entries))
    raise OptionError(
        f"quant_cfg is a {type(quant_cfg).__name__}; give ModelOpt's dict of globs or list of entries."
    )


def _from_dict(quant_cfg: Mapping[Any, Any]) -> Recipe:
    """Case 2."""
    named = [(key, value) for key, value in quant_cfg.items() if key != "default"]
    notes: tuple[str, ...] = ()
    if "default" in quant_cfg:
        if named and next(iter(quant_cfg)) != "default":
            notes = (
                'quant_cfg: "default" is applied before the other entries, as ModelOpt did when this '
                "spelling was current; 0.47 would apply it at its place and override those before it.",
            )
        named.insert(0, (EVERYTHING, quant_cfg["default"]))
    return Recipe(tuple(entry for key, value in named for entry in _keyed(key, value)), notes)


def _listed(number: int, raw: object) -> list[Entry]:
    """Case 1."""
    if not isinstance(raw, Mapping):
        raise OptionError(f"quant_cfg entry {number} is a {type(raw).__name__}; give a dict.")
    if "quantizer_name" in raw:
        unknown = sorted(str(key) for key in set(raw) - _ENTRY_KEYS)
        if unknown:
            raise OptionError(
                f"quant_cfg entry {number} has the keys {unknown}; allowed are {sorted(_ENTRY_KEYS)}."
            )
        cfg, enable = raw.get("cfg"), raw.get("enable")
        return [_entry(raw["quantizer_name"], raw.get("parent_class") or "", cfg, enable)]
    if len(raw) != 1:
        raise OptionError(
            f"quant_cfg entry {number} has no quantizer_name; write "
            '{"quantizer_name": glob, "cfg": {...}} or {glob: {...}}.'
        )
    return [entry for key, value in raw.items() for entry in _keyed(key, value)]


def _keyed(key: object, value: object) -> list[Entry]:
    if not isinstance(key, str):
        raise OptionError(f"quant_cfg key {key!r} is not text; functions as filters are not read.")
    glob = EVERYTHING if key == "default" else key
    if not key.startswith("nn."):
        return [_entry(glob, "", *_without_enable(value))]
    if not isinstance(value, Mapping):
        raise OptionError(f"quant_cfg {key!r} needs a dict of globs, not {type(value).__name__}.")
    return [_entry(inner, key, *_without_enable(cfg)) for inner, cfg in value.items()]


def _without_enable(value: object) -> tuple[object, object]:
    if not isinstance(value, Mapping):
        return value, None
    rest = {name: item for name, item in value.items() if name != "enable"}
    return rest or None, value.get("enable")


def _entry(glob: object, parent_class: str, cfg: object, enable: object) -> Entry:
    """Case 3."""
    if not isinstance(glob, str):
        raise OptionError(f"quant_cfg quantizer_name {glob!r} is not text.")
    if cfg is None or cfg in ({}, []):
        if not isinstance(enable, bool) or (cfg is not None and enable):
            raise OptionError(f"quant_cfg {glob!r} says neither attributes nor enable.")
        return Entry(glob, parent_class, None, enable)
    return Entry(glob, parent_class, _attributes(glob, cfg), enable is not False)


def _attributes(glob: str, cfg: object) -> Attributes:
    if isinstance(cfg, Sequence) and not isinstance(cfg, str):
        return Attributes(
            num_bits=tuple(_bits(each) for each in cfg), others=("several quantizers in sequence",)
        )
    if not isinstance(cfg, Mapping):
        raise OptionError(f"quant_cfg {glob!r} has attributes of type {type(cfg).__name__}.")
    others = tuple(
        f"{name}={cfg[name]!r}"
        for name, harmless in _DEFAULTS.items()
        if name in cfg and not any(cfg[name] == value for value in harmless)
    )
    return Attributes(_bits(cfg), cfg.get("axis"), others)


def _bits(cfg: object) -> object:
    bits = cfg.get("num_bits", 8) if isinstance(cfg, Mapping) else cfg
    return tuple(bits) if isinstance(bits, list) else bits


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a recipe makes of one quantizer.

    Attributes:
        enabled: It quantizes.
        attributes: How.
        by: The entry that switched it last, None where none did.
    """

    enabled: bool
    attributes: Attributes
    by: Entry | None = None

    @property
    def is_excluded(self) -> bool:
        """A glob of its own switched it off, not the one for everything."""
        return not self.enabled and self.by is not None and self.by.glob != EVERYTHING


@dataclasses.dataclass(frozen=True)
class Applied:
    """Settings by quantizer, and the quantizers that each entry of the recipe matched."""

    settings: Mapping[str, Setting]
    matched: tuple[tuple[str, ...], ...]


def apply_recipe(recipe: Recipe, quantizers: Mapping[str, str]) -> Applied:
    """Apply a recipe to the quantizers of a model.

    Args:
        recipe: From :func:`read_recipe`.
        quantizers: Class of the module (``nn.Linear``, "" if unknown) by path of the quantizer.
    """
    settings = {name: initial_setting(name) for name in quantizers}
    matched = []
    for entry in recipe.entries:
        names = tuple(_matching(entry, quantizers))
        matched.append(names)
        for name in names:
            attributes = entry.attributes or settings[name].attributes
            settings[name] = Setting(entry.enable, attributes, entry)
    return Applied(settings, tuple(matched))


def initial_setting(name: str) -> Setting:
    """What a quantizer does before any entry: ModelOpt inserts outputs off and the rest on, INT8,
    weights with one scale for each index of axis 0."""
    kind = name.rpartition(".")[2]
    return Setting(
        kind != "output_quantizer", Attributes(8, 0 if kind == "weight_quantizer" else None)
    )


def _matching(entry: Entry, quantizers: Mapping[str, str]) -> Iterable[str]:
    """Case 4."""
    for name, parent_class in quantizers.items():
        if entry.parent_class and entry.parent_class != parent_class:
            continue
        if fnmatch.fnmatch(name, entry.glob):
            yield name
