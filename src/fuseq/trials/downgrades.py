"""Steps from the fastest plan towards the float model, the most error for the least time first.

Each region can stay, change to another format, or return to float. Of each region's options only
those on the lower convex hull of error against cost are worth a step, and steps of all regions in
order of error removed for each unit of cost are the greedy answer to the multiple-choice knapsack
(Sinha and Zoltners, "The Multiple-Choice Knapsack Problem", Operations Research 27(3), 1979), under
the assumption that errors and costs add up. Whole plans are evaluated afterwards.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from fuseq.placement.plan import Plan, QuantizedTensor, Region


@dataclasses.dataclass(frozen=True)
class Option:
    """What a region could be.

    Attributes:
        format: ``float`` or a format.
        error: Noise over signal at the outputs when only this region is quantized so.
        gain: What it saves against float, in the objective's unit.
        entries: Its entries in the plan.
    """

    format: str
    error: float
    gain: float
    entries: tuple[QuantizedTensor, ...]


@dataclasses.dataclass(frozen=True)
class Downgrade:
    """One step: ``region`` becomes ``option``, which removes error at a rate for each unit of cost."""

    region: Region
    option: Option
    removes: float
    rate: float


def downgrades(options: Sequence[tuple[Region, Sequence[Option]]]) -> list[Downgrade]:
    """All steps in order; a region's own steps stay in theirs.

    Args:
        options: For each region its options, the one of the fastest plan first; ``float`` is added.
    """
    steps = [
        step
        for region, found in options
        for step in _hull(region, found[0], [*found[1:], Option("float", 0.0, 0.0, ())])
    ]
    return sorted(steps, key=lambda step: (-step.rate, step.region.name))


def apply(plan: Plan, steps: Sequence[Downgrade]) -> Plan:
    """The plan after ``steps``; of a region's steps the last one counts."""
    last = {step.region.name: step for step in steps}
    kept = [entry for entry in plan.tensors if entry.region not in last]
    added = [entry for step in last.values() for entry in step.option.entries]
    regions = tuple(
        _decided(region, last[region.name]) if region.name in last else region
        for region in plan.regions
    )
    return dataclasses.replace(plan, tensors=(*kept, *added), regions=regions)


def _decided(region: Region, step: Downgrade) -> Region:
    if step.option.format == "float":
        return dataclasses.replace(
            region, quantized=False, reason="float: its error costs more than it saves (measured)"
        )
    return dataclasses.replace(
        region, reason=f"quantized: {step.option.format} has less error (measured)"
    )


def _hull(region: Region, start: Option, others: Sequence[Option]) -> list[Downgrade]:
    """Steps of one region: from where it is, again and again the option of the best rate."""
    steps: list[Downgrade] = []
    here = start
    while True:
        better = [option for option in others if option.error < here.error]
        if here.error == 0 and not steps:
            better = [option for option in others if option.format == "float"]
        if not better:
            return steps
        chosen = max(better, key=lambda option: (_rate(here, option), -option.error))
        rate = _rate(here, chosen)
        # A later step of the same region must not come before an earlier one.
        rate = min(rate, steps[-1].rate) if steps else rate
        steps.append(Downgrade(region, chosen, here.error - chosen.error, rate))
        if chosen.format == "float":
            return steps
        here = chosen


def _rate(here: Option, there: Option) -> float:
    """Error removed for each unit of gain that is given up; infinite where none is."""
    cost, removed = here.gain - there.gain, here.error - there.error
    return removed / cost if cost > 0 else math.inf
