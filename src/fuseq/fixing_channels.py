"""A file's weight scales a channel are kept where the target asks for one scale but loses nothing by them.

Rounding a weight anew from one scale a channel to one for all adds its noise to that of the file's own
rounding. A planner that starts from float weights has no such price to pay, so the question is asked here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from fuseq.calibration.kept_scales import KeptWeights, kept_weight_scales
from fuseq.calibration.scales import Scale
from fuseq.formats import format_named
from fuseq.passes.found_scales import FoundScale
from fuseq.placement.cells import Trial
from fuseq.placement.patterns import weighted
from fuseq.placement.pays import prediction_of
from fuseq.placement.plan import Plan, QuantizedTensor
from fuseq.placement.weight_noise import channel_sqnr_db
from fuseq.planning import Job, Planned, Report, compile_quantized

SLACK = 1.002
"""Predicted time that scales a channel may cost: what the cost model cannot tell from nothing."""

MIN_GAIN = 0.02
"""What the whole engine must gain by weights that are rounded a second time: the planner's own least gain
for rounding at all, below which the cost model cannot tell (docs/cost-model.md)."""

MIN_SQNR_DB = 30.0
"""Below this, one scale instead of the file's scales a channel is no choice of speed: `fix` is to keep
outputs at a cosine of 0.999, which is noise at 27 dB for all layers together."""

_Scales = Callable[[Plan, KeptWeights], Mapping[str, Scale]]


def keep_channels(
    job: Job,
    planned: Planned,
    weights: KeptWeights,
    found: Sequence[FoundScale],
    scales_with: _Scales,
    report: Report,
) -> tuple[Planned, KeptWeights]:
    """Compile the plan with the file's scales a channel, for all weights, then for one kind of them.

    Returns:
        The first of these whose engine is as fast as the plan's within :data:`SLACK`, with its weight
        scales; else the plan as it was. Nothing is tried where nothing compiles or nothing was re-rounded.
    """
    if planned.trial is None or planned.float_engine is None:
        return planned, weights
    lost = _lost_channels(job, planned.plan, weights, found)
    kinds = {name: is_conv for name, (_, is_conv) in lost.items()}
    choices = [set(lost)]
    if len(set(kinds.values())) > 1:
        choices += [{n for n in lost if kinds[n] is kind} for kind in (False, True)]
    allowed_us = planned.trial.engine.predicted_us * SLACK
    for number, names in enumerate(choices if lost else [], start=1):
        report("compile with the file's scales a channel", number, None)
        axes = {name: lost[name][0] for name in names}
        candidate = _with_axes(
            planned.plan, axes, "but the file's scales a channel cost nothing here"
        )
        kept = kept_weight_scales(candidate, job.model, found, job.precision)
        trial = compile_quantized(job, candidate, scales_with(candidate, kept))
        if trial.engine.predicted_us <= allowed_us:
            return _planned(planned, trial), kept
    return planned, weights


def spare_weights(
    job: Job,
    planned: Planned,
    weights: KeptWeights,
    found: Sequence[FoundScale],
    scales_with: _Scales,
    report: Report,
) -> Planned:
    """Leave layers float whose weights would be rounded a second time for less than :data:`MIN_GAIN`.

    The file's weights are rounded once, and its tool or training has judged the result. Another scale
    rounds them again: in its favour speaks a gain of the whole engine, and nothing smaller.

    Returns:
        The plan without these layers, where that costs no more; else the plan as it was.
    """
    if planned.trial is None or planned.float_engine is None or job.options.policy == "full":
        return planned
    regions = _rounded_again(planned.plan, weights, found)
    if not regions:
        return planned
    reason = "float: its weights would be rounded a second time for less than 2 % of the engine"
    candidate = planned.plan.without(regions, reason)
    allowed_us = planned.trial.engine.predicted_us * (1 + MIN_GAIN)
    if not candidate.tensors:
        if planned.float_engine.predicted_us > allowed_us:
            return planned
        prediction = prediction_of(planned.float_engine, planned.float_engine)
        plan = dataclasses.replace(candidate, prediction=prediction)
        return dataclasses.replace(planned, plan=plan, trial=None)
    report("compile without weights that are rounded again", 0, None)
    trial = compile_quantized(job, candidate, scales_with(candidate, weights))
    limits = (allowed_us, planned.float_engine.predicted_us)
    return _planned(planned, trial) if trial.engine.predicted_us <= min(limits) else planned


def restore_channels(job: Job, plan: Plan, found: Sequence[FoundScale]) -> Plan:
    """Give weights their file's scales a channel where one for all would be heard (:data:`MIN_SQNR_DB`).

    What that costs is then judged like everything else: the layer may stay float. Weights that share one
    scale, because their products merge, keep it.
    """
    lost = _lost_channels(job, plan, None, found)
    shared = {group for group, entries in plan.groups().items() if len(entries) > 1}
    axes = {}
    for entry in plan.tensors:
        value = job.model.graph.initializers.get(entry.tensor)
        tensor = value.const_value if value is not None else None
        if entry.tensor not in lost or entry.group in shared or tensor is None:
            continue
        fmt = format_named(entry.format)
        if fmt.is_float:  # its precision is relative, so channels do not vanish beside larger ones
            continue
        axis = lost[entry.tensor][0]
        if channel_sqnr_db(tensor.numpy(), axis, fmt) < MIN_SQNR_DB:
            axes[entry.tensor] = axis
    return _with_axes(
        plan, axes, "but one for all would lose what the file's scales a channel keep"
    )


def _lost_channels(
    job: Job, plan: Plan, weights: KeptWeights | None, found: Sequence[FoundScale]
) -> dict[str, tuple[int, bool]]:
    """Axis of the file's scales by weight that the plan gives one scale; and whether a convolution reads it."""
    axes = {scale.tensor: scale.by.axis for scale in found if scale.kind == "weight"}
    nodes = {node.name: node for node in job.model.graph}
    lost = {}
    for entry in plan.tensors:
        axis = axes.get(entry.tensor)
        if entry.kind != "weight" or entry.axis is not None or axis is None:
            continue
        matches = [weighted(nodes[use.node]) for use in entry.uses if use.node in nodes]
        re_rounded = weights is None or entry.group in weights.changed
        if re_rounded and all(m and m.channel_axis == axis for m in matches):
            lost[entry.tensor] = (axis, any(m is not None and m.is_conv for m in matches))
    return lost


def _rounded_again(plan: Plan, weights: KeptWeights, found: Sequence[FoundScale]) -> frozenset[str]:
    """Regions with a weight that the file has in the plan's kind of format, under another scale."""
    stored = {scale.tensor: scale.by.format for scale in found if scale.kind == "weight"}
    return frozenset(
        entry.region
        for entry in plan.tensors
        if entry.kind == "weight"
        and entry.group in weights.changed
        and entry.tensor in stored
        and stored[entry.tensor].startswith("fp8") == format_named(entry.format).is_float
    )


def _with_axes(plan: Plan, axes: Mapping[str, int], why: str) -> Plan:
    def changed(entry: QuantizedTensor) -> QuantizedTensor:
        if entry.kind != "weight" or entry.tensor not in axes:
            return entry
        reason = f"{entry.reason}; {why}"
        return dataclasses.replace(
            entry, axis=axes[entry.tensor], group=entry.tensor, reason=reason
        )

    return dataclasses.replace(plan, tensors=tuple(changed(entry) for entry in plan.tensors))


def _planned(planned: Planned, trial: Trial) -> Planned:
    assert planned.float_engine is not None
    prediction = prediction_of(planned.float_engine, trial.engine)
    plan = dataclasses.replace(trial.plan, prediction=prediction)
    return dataclasses.replace(planned, plan=plan, trial=dataclasses.replace(trial, plan=plan))
