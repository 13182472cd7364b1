"""Says where each quantizer of a prepared module sits, and why; and what is not quantized, and why."""

from __future__ import annotations

import dataclasses

from torch import nn

from fuseq.source_lines import module_path, source_line
from fuseq.torch.prepared import Prepared, prepared_of


@dataclasses.dataclass(frozen=True)
class Explained:
    """One region of the plan in words of the module.

    Attributes:
        module: Path of the module that the region belongs to; "" is the root.
        pattern: What was found there (``conv block``, ``attention`` ...).
        quantized: The decision.
        reason: The decision in words.
        tensors: One line for each quantized tensor: role, place, format, granularity, scale.
        source: The user's line of code; "" if not recorded.
    """

    module: str
    pattern: str
    quantized: bool
    reason: str
    tensors: tuple[str, ...]
    source: str


def explain(prepared: nn.Module) -> str:
    """Describe a prepared module: every region with its decision, its quantizers and their reasons.

    Raises:
        PlanError: The module is not prepared.
    """
    lines = [_heading(prepared_of(prepared))]
    for part in explained(prepared):
        mark = "+" if part.quantized else "-"
        lines.append(f"{mark} {part.module or '(root)'}: {part.pattern}, {part.reason}")
        if part.source:
            lines.append(f"    at {part.source}")
        lines += [f"    {line}" for line in part.tensors]
    found = prepared_of(prepared)
    for path, module in uncalled(found).items():
        kind = type(module).__name__
        lines.append(f"- {path}: {kind}, float: the forward pass never calls it")
    for tensor, reason in found.points.missing.items():
        lines.append(f"! {tensor}: quantized in the export, float in training: {reason}")
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def explained(prepared: nn.Module) -> list[Explained]:
    """The regions of a prepared module's plan, in graph order.

    Raises:
        PlanError: The module is not prepared.
    """
    found = prepared_of(prepared)
    nodes = {node.name or "": node for node in found.job.model.graph}
    result = []
    for region in found.plan.regions:
        node = next((nodes[name] for name in region.nodes if name in nodes), None)
        result.append(
            Explained(
                module_path(node) if node is not None else "",
                region.pattern,
                region.quantized,
                region.reason,
                tuple(_tensor_lines(found, region.name)),
                (source_line(node) or "") if node is not None else "",
            )
        )
    return result


def uncalled(prepared: Prepared) -> dict[str, nn.Module]:
    """Modules with weights, by path, that no call of the example's forward pass came from."""
    seen = {call.key.scope for call in prepared.capture.calls}
    return {
        path: module
        for path, module in prepared.module.named_modules()
        if path not in seen
        and any(weight.ndim > 1 for weight in module.parameters(recurse=False))
        and not any(scope.startswith(f"{path}.") for scope in seen)
    }


def _heading(found: Prepared) -> str:
    regions = found.plan.regions
    quantized = sum(region.quantized for region in regions)
    state = "calibrated" if found.state.places else "not calibrated: all that can be is planned"
    return (
        f"{type(found.module).__name__}: {quantized} of {len(regions)} regions in "
        f"{found.plan.format} for {found.plan.target} ({state})"
    )


def _tensor_lines(found: Prepared, region: str) -> list[str]:
    lines = []
    for entry in found.plan.tensors:
        if entry.region != region:
            continue
        scale = found.scales.get(entry.group)
        values = ""
        if scale is not None:
            values = (
                f", scale {float(scale.scale):.6g}"
                if scale.scale.ndim == 0
                else f", {scale.scale.size} scales"
            )
        by = "per tensor" if entry.axis is None else f"per channel of axis {entry.axis}"
        lines.append(f"{entry.kind} {entry.tensor}: {entry.format} {by}{values}; {entry.reason}")
    return lines
