"""The plan that a quantized file amounts to: the placement that its tool chose."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from fuseq.formats import FORMATS, Format
from fuseq.passes.found_scales import FoundScale
from fuseq.placement.plan import Plan, QuantizedTensor, Region, Use, fingerprint
from fuseq.targets.fusion import FusionRules

_REASON = "quantized in the file"
_OWN_FORMATS = {known.name for known in FORMATS}


def plan_of_file(
    model: ir.Model,
    found: Sequence[FoundScale],
    rules: FusionRules,
    *,
    target: str,
    user_format: str,
    precision: str,
) -> tuple[Plan, dict[str, FoundScale]]:
    """Write a file's placement as a plan for a target, with what is illegal there left out.

    1. Activations and weights in the file's own format where the target's kernels take zero points,
       else in the target's (symmetric) format.
    2. One scale for all channels of an activation where zero points are illegal.
    3. INT32 biases where the target adds them, else float.
    4. One region for each reader, so that each pair can be asked about.

    Args:
        model: The stripped float model.
        found: Its scales, by its names.
        rules: What the target fuses.
        target: Name of the target.
        user_format: ``int8`` or ``fp8``.
        precision: Type of what stays float.

    Returns:
        The plan, and the file's scale by scale group.
    """
    tensors: list[QuantizedTensor] = []
    by_group: dict[str, FoundScale] = {}
    for scale in found:
        if not scale.uses or (scale.kind == "bias" and not rules.int32_bias):  # case 3
            continue
        entry = _entry(scale, rules, _fresh_group(scale.tensor, by_group))
        by_group[entry.group] = scale
        tensors.append(entry)
    plan = Plan(
        target=target,
        format=user_format,
        precision=precision,
        policy="full",
        fingerprint=fingerprint(model),
        tensors=tuple(tensors),
        regions=_regions(model, tensors),
    )
    return plan, by_group


def _entry(scale: FoundScale, rules: FusionRules, group: str) -> QuantizedTensor:
    takes_zero_points = not rules.activation.symmetric
    is_one = scale.kind == "activation" and not takes_zero_points  # case 2
    return QuantizedTensor(
        tensor=scale.tensor,
        kind=scale.kind,
        format=_format(scale, rules, takes_zero_points),
        axis=None if is_one else scale.by.axis,
        group=group,
        uses=scale.uses,
        region=_region(scale.uses),
        reason=_REASON,
    )


def _format(scale: FoundScale, rules: FusionRules, takes_zero_points: bool) -> str:
    if scale.kind == "bias":
        return "int32"
    wanted: Format = rules.activation if scale.kind == "activation" else rules.weight
    own = scale.by.format
    if takes_zero_points and own in _OWN_FORMATS and own != "fp8":
        if scale.kind == "activation" and own == "int8" and scale.by.zero_point.any():
            return wanted.name
        return own
    return wanted.name


def _fresh_group(tensor: str, taken: dict[str, FoundScale]) -> str:
    name, number = tensor, 1
    while name in taken:
        number += 1
        name = f"{tensor}#{number}"
    return name


def _region(uses: Sequence[Use]) -> str:
    return uses[0].node or f"(output {uses[0].index})"


def _regions(model: ir.Model, tensors: Sequence[QuantizedTensor]) -> tuple[Region, ...]:
    nodes = {node.name or "": node for node in model.graph}
    found: dict[str, Region] = {}
    for entry in tensors:
        node = nodes.get(entry.region)
        pattern = node.op_type if node is not None else "output"
        members = (entry.region,) if node is not None else ()
        found.setdefault(entry.region, Region(entry.region, pattern, members, True, _REASON))
    return tuple(found.values())
