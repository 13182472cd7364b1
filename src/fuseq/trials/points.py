"""All that could be quantized in a graph: the planner's regions under the widest rules, and more.

The planner asks the target's rules, which say what usually pays. The search may also try what they
refuse: depthwise convolutions, narrow inputs, residual branches, pools and additions in the format,
tensors stored in the format between operators without weights. The compiler judges.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.placement.choices import PlanOptions
from fuseq.placement.patterns import copies_values, is_float_activation, weighted
from fuseq.placement.plan import Plan, QuantizedTensor, Region, Use
from fuseq.placement.planner import plan_everything
from fuseq.planning import Job
from fuseq.targets.fusion import FusionRules

STORED = "stored tensor"
"""Pattern of a region that only stores a tensor in the format, for readers without weights."""

MIN_STORED_VALUES = 1 << 14
"""Tensors below this many values are not worth a pair: moving them costs less than a launch."""

_WIDE_UNWEIGHTED = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "Add"})


@dataclasses.dataclass(frozen=True)
class Points:
    """What may be quantized.

    Attributes:
        usual: The plan of all that the target's own rules allow.
        wide: The plan of all that the widest rules allow.
        stored: Regions of tensors to store, each with its entry.
        channel_axes: Output-channel axis by weight name.
    """

    usual: Plan
    wide: Plan
    stored: Mapping[str, tuple[Region, QuantizedTensor]]
    channel_axes: Mapping[str, int]

    @property
    def regions(self) -> dict[str, Region]:
        """Every region that could be quantized, as it is when quantized, by name."""
        found = {region.name: region for region in self.wide.regions if region.quantized}
        found.update({region.name: region for region in self.usual.regions if region.quantized})
        found.update({name: region for name, (region, _) in self.stored.items()})
        return found

    def entries(self, region: str) -> tuple[QuantizedTensor, ...]:
        """Entries of a region as the target's rules want it, or else as the wide rules do."""
        if region in self.stored:
            return (self.stored[region][1],)
        usual = tuple(entry for entry in self.usual.tensors if entry.region == region)
        return usual or self._core(region)

    def optional(self, region: str) -> tuple[QuantizedTensor, ...]:
        """Entries that a region may have besides: residual branches, inputs of pools and sums."""
        usual = {(e.tensor, e.uses) for e in self.entries(region)}
        return tuple(
            entry
            for entry in self.wide.tensors
            if entry.region == region and (entry.tensor, entry.uses) not in usual
        )

    def activations(self) -> list[str]:
        """Names of all activations that a trial may quantize and only data gives a range for."""
        entries = [*self.usual.tensors, *self.wide.tensors, *(e for _, e in self.stored.values())]
        names = [e.tensor for e in entries if e.kind == "activation" and e.known_amax is None]
        return list(dict.fromkeys(names))

    def without_tensors(self, because: Mapping[str, str]) -> Points:
        """The points less the regions whose tensors gave no scale, with the reasons by tensor."""

        def cleaned(plan: Plan) -> Plan:
            bad = {e.region: f"float: {e.tensor} is {because[e.tensor]} in calibration"
                   for e in plan.tensors if e.tensor in because}  # fmt: skip
            return plan.without(bad, bad)

        stored = {name: p for name, p in self.stored.items() if p[1].tensor not in because}
        return dataclasses.replace(
            self, usual=cleaned(self.usual), wide=cleaned(self.wide), stored=stored
        )

    def _core(self, region: str) -> tuple[QuantizedTensor, ...]:
        found = [entry for entry in self.wide.tensors if entry.region == region]
        own = tuple(e for e in found if any(use.node == region for use in e.uses))
        return own or tuple(found)


def points_of(job: Job, usual: Plan) -> Points:
    """Find what may be quantized; ``usual`` is the planner's complete plan."""
    rules = job.target.rules(job.options.format)
    wide = _planned_with(job, wide_rules(rules))
    blocked = {region.name for region in usual.regions if not region.quantized and _by_user(region)}
    wide = wide.without(blocked, "float: kept by option")
    weights = [found for node in job.model.graph if (found := weighted(node)) is not None]
    axes = {match.weight.name or "": match.channel_axis for match in weights}
    return Points(usual, wide, _stored(job, rules.activation.name), axes)


def wide_rules(rules: FusionRules) -> FusionRules:
    """The rules with every refusal lifted that a compiler, not a standard, has to judge."""
    return dataclasses.replace(
        rules,
        depthwise="",
        depthwise_activations=None,
        min_conv_channels=1,
        residual="identity",
        attention="",
        unweighted=rules.unweighted | _WIDE_UNWEIGHTED,
    )


def _planned_with(job: Job, rules: FusionRules) -> Plan:
    options = job.options
    return plan_everything(
        job.model,
        rules,
        target=job.target.name,
        user_format=options.format,
        precision=job.precision,
        options=PlanOptions(
            exclude=options.exclude,
            include=options.include,
            keep_first=options.keep_first,
            keep_last=options.keep_last,
        ),
    )


def _by_user(region: Region) -> bool:
    return (
        "--exclude" in region.reason or "--include" in region.reason or "by option" in region.reason
    )


def _stored(job: Job, fmt: str) -> dict[str, tuple[Region, QuantizedTensor]]:
    found = {}
    for node in job.model.graph:
        for value in node.outputs:
            region = _stored_region(job, node, value, fmt)
            if region is not None:
                found[region[0].name] = region
    return found


def _stored_region(
    job: Job, node: ir.Node, value: ir.Value, fmt: str
) -> tuple[Region, QuantizedTensor] | None:
    """A pair for the readers of a tensor that have no weights, of which one at least computes."""
    if (
        not is_float_activation(value)
        or copies_values(node)
        or _size(value, job) < MIN_STORED_VALUES
    ):
        return None
    uses = [use for use in value.uses() if weighted(use.node) is None]
    if all(copies_values(use.node) for use in uses):
        return None
    if any(use.node.graph is not job.model.graph for use in uses):
        return None
    name = value.name or ""
    readers = tuple(dict.fromkeys(use.node.name or "" for use in uses))
    region = f"{name}:stored"
    why = f"{name} is stored in {fmt} between {node.op_type} and its readers"
    entry = QuantizedTensor(
        name, "activation", fmt, None, name,
        tuple(Use(use.node.name or "", use.idx) for use in uses), region, why,
    )  # fmt: skip
    return Region(region, STORED, (node.name or "", *readers), True, f"quantized: {why}"), entry


def _size(value: ir.Value, job: Job) -> int:
    """Values of a tensor at the batch that engines are compiled for; 0 where it is not known."""
    if value.shape is None:
        return 0
    batch = max((shape[0] for shape in job.profile.optimum.values() if shape), default=1)
    dims = [
        dim if isinstance(dim, int) else (batch if axis == 0 else 1)
        for axis, dim in enumerate(value.shape)
    ]
    return math.prod(dims)
