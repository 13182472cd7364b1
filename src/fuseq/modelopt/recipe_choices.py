"""What a recipe's settings mean for regions of a plan: the format, and which layers stay float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuseq.errors import OptionError
from fuseq.modelopt.checkpoint import Checkpoint
from fuseq.modelopt.places import Place
from fuseq.modelopt.quant_cfg import Applied, Setting

_ATTENTION = ("q_bmm_quantizer", "k_bmm_quantizer", "v_bmm_quantizer")


def stored_settings(checkpoint: Checkpoint, applied: Applied | None = None) -> dict[str, Setting]:
    """Settings as a checkpoint has them.

    Args:
        checkpoint: Its quantizers decide.
        applied: Its recipe, applied to the model: it names the entry behind a setting, and what it
            excludes is off where the checkpoint does not mention it (unified exports).
    """
    told = {} if applied is None else applied.settings
    settings = {name: setting for name, setting in told.items() if setting.is_excluded}
    for name, stored in checkpoint.quantizers.items():
        by = told[name].by if name in told and told[name].enabled == stored.enabled else None
        settings[name] = Setting(stored.enabled, stored.attributes, by)
    return settings


def recipe_format(settings: Mapping[str, Setting]) -> str:
    """``fp8`` or ``int8``: what most weights that are on get.

    Raises:
        OptionError: No weight is on in a format that an engine's Q/DQ has.
    """
    weights = [s for name, s in settings.items() if name.endswith("weight_quantizer") and s.enabled]
    formats = [s.attributes.format for s in weights if not s.attributes.problem]
    if not formats:
        problems = {s.attributes.problem for s in weights}
        why = "; ".join(sorted(problems)) or "no weight quantizer of this model is switched on"
        raise OptionError(
            f"the ModelOpt recipe quantizes nothing here: {why}; give num_bits 8 or (4, 3) to the "
            "weight and input quantizers of some layers."
        )
    return "fp8" if formats.count("fp8") * 2 > len(formats) else "int8"


def float_reasons(places: Sequence[Place], settings: Mapping[str, Setting]) -> dict[str, str]:
    """Why regions stay float, by region.

    1. A layer whose weight or input quantizer is off, or asks for a format without Q/DQ. Layers that
       were merged into one product stay float together.
    2. An attention whose Q, K or V quantizer a glob of its own switched off. One that only the rule
       for everything left off is the planner's to decide: the recipe did not think of it.
    """
    reasons: dict[str, str] = {}
    for place in places:
        setting = settings.get(place.quantizer)
        if place.match is not None:
            why = _why_float(place, setting)
        elif place.quantizer.endswith(_ATTENTION) and setting is not None and setting.is_excluded:
            why = f"excluded by {setting.by} of the ModelOpt recipe"
        else:
            continue
        if why:
            reasons.setdefault(place.region, why)
    return reasons


def _why_float(place: Place, setting: Setting | None) -> str:
    """Case 1."""
    module, _, leaf = place.quantizer.rpartition(".")
    what = f"the {leaf} of {module}"
    if setting is None:
        return f"ModelOpt put no {leaf} into {module}"
    if not setting.enabled:
        if setting.is_excluded:
            return f"{module} is excluded by {setting.by} of the ModelOpt recipe"
        return f"{what} is off in the ModelOpt recipe"
    problem = setting.attributes.problem
    return f"{what}: {problem}" if problem else ""
