"""Accuracy against the objective: the curve from the fastest plan to the float model, and the point
on it that keeps the constraint and is fastest.

1. Each region of the fastest plan is quantized alone, also in the target's other formats, and the
   outputs are compared with the float model's.
2. Steps towards float are put in order (:mod:`fuseq.trials.downgrades`).
3. Plans after some of the steps are compiled and evaluated whole: first evenly spread, and those that
   remove the most error whatever it costs; then between the last that misses the bar and the first
   that keeps it.
4. Around the best plan that keeps it, single steps are taken back.
5. What no longer pays beside regions that went back to float goes back too, as the planner judges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuseq.calibration.ranges import Range
from fuseq.errors import TargetError
from fuseq.formats import USER_FORMATS
from fuseq.placement.cells import Trial
from fuseq.placement.pays import keep_what_pays
from fuseq.placement.plan import Plan, QuantizedTensor, Region
from fuseq.planning import Report, everything
from fuseq.trials.accuracy import noise_ratio, outputs_of
from fuseq.trials.constraint import Constraint, Outputs
from fuseq.trials.downgrades import Downgrade, Option, apply, downgrades
from fuseq.trials.gains import region_gains
from fuseq.trials.judge import Judge
from fuseq.trials.prepare import Prepared
from fuseq.trials.rounded import store_rounded

SPREAD = 8
"""Parts that the steps are cut into for the curve."""

BISECTIONS = 3
"""Rounds of plans between the last that misses the bar and the first that keeps it."""

WORST = (1, 2, 4, 8)
"""Numbers of regions with the largest errors that are left out whatever they save."""

CLEANED = 2
"""Plans of which what no longer pays is taken out."""

TAKEN_BACK = 8
"""Single steps tried to take back."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One plan on the curve.

    Attributes:
        plan: The plan.
        value: The objective; infinite where the compiler refused it.
        score: The constraint's measure, whole model.
        noise: Noise over signal at the outputs.
        steps: Steps behind it.
    """

    plan: Plan
    value: float
    score: float
    noise: float
    steps: tuple[Downgrade, ...]

    def numbers(self) -> dict[str, Any]:
        """For JSON: figures, and how many regions have which format."""
        return {
            "value": self.value,
            "score": self.score,
            "noise_over_signal": self.noise,
            "regions": formats_of(self.plan),
        }


@dataclasses.dataclass(frozen=True)
class Tradeoff:
    """The curve.

    Attributes:
        measure: What :attr:`Point.score` is.
        bar: The least allowed.
        points: Every plan evaluated, fastest first; the last is float.
        chosen: Fastest of those that keep the bar.
        unconstrained: The fastest of all.
    """

    measure: str
    bar: float
    points: tuple[Point, ...]
    chosen: Point
    unconstrained: Point

    @property
    def pareto(self) -> tuple[Point, ...]:
        """Points that no other beats in both value and score, fastest first."""
        front: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.value, -p.score)):
            if not front or point.score > front[-1].score:
                front.append(point)
        return tuple(front)


def formats_of(plan: Plan) -> dict[str, int]:
    """Number of regions by format; ``float`` for those that are not quantized."""
    formats = {e.region: e.format for e in plan.tensors if e.kind != "bias"}
    counts: dict[str, int] = {}
    for region in plan.regions:
        name = formats.get(region.name, "float") if region.quantized else "float"
        counts[name] = counts.get(name, 0) + 1
    return counts


@dataclasses.dataclass
class Evaluator:
    """Compiles and evaluates whole plans, a wave at a time.

    Attributes:
        judge: Compiles.
        prepared: The calibrated job.
        data: File of samples.
        constraint: What is measured.
        exact: Outputs of the float model.
        base: The fastest plan.
        report: Progress.
    """

    judge: Judge
    prepared: Prepared
    data: str
    constraint: Constraint
    exact: Outputs
    base: Plan
    report: Report

    def points(self, choices: Sequence[Sequence[Downgrade]]) -> list[Point]:
        """One point for each list of steps."""
        plans = [apply(self.base, steps) for steps in choices]
        return self._evaluated(plans, choices)

    def point_of(self, plan: Plan) -> Point:
        """The point of a plan that no steps lead to."""
        return self._evaluated([plan], [()])[0]

    def outputs(self, plans: Sequence[Plan]) -> list[dict[str, np.ndarray]]:
        """Outputs of every plan, its weights rounded as the options say."""
        store_rounded(self.prepared, plans, self.report)
        return outputs_of(self.judge.workload, plans, self.data, self.judge.session, self.report)

    def _evaluated(
        self, plans: Sequence[Plan], choices: Sequence[Sequence[Downgrade]]
    ) -> list[Point]:
        outcomes = self.judge.outcomes(plans)
        outputs = self.outputs(plans)
        return [
            Point(
                plan,
                self.judge.value(outcome),
                self.constraint.score(self.exact, near),
                noise_ratio(self.exact, near),
                tuple(steps),
            )
            for plan, outcome, near, steps in zip(plans, outcomes, outputs, choices, strict=True)
        ]


def trade_off(
    fastest: Trial,
    float_trial: Trial,
    prepared: Prepared,
    judge: Judge,
    constraint: Constraint,
    data: str,
    report: Report,
) -> Tradeoff:
    """Evaluate the curve and choose.

    Raises:
        CalibrationError: The user's metric cannot be used.
    """
    nothing = float_trial.plan
    exact = outputs_of(judge.workload, [nothing], data, judge.session, report)[0]
    ask = Evaluator(judge, prepared, data, constraint, exact, fastest.plan, report)
    bar = constraint.bar(exact)
    steps = _steps(fastest, float_trial, prepared, ask)
    points = [*_curve(ask, steps, bar), *_worst_first(ask, steps)]
    kept = [point for point in points if point.score >= bar]
    if kept:
        best = min(kept, key=lambda point: point.value)
        points += _taken_back(ask, best, bar)
        points += _cleaned(ask, [point for point in points if point.score >= bar], float_trial)
    ordered = sorted(points, key=lambda point: (point.value, -point.score))
    best_kept = [point for point in ordered if point.score >= bar]
    float_point = next(p for p in points if not p.plan.tensors)
    return Tradeoff(
        constraint.measure, bar, tuple(ordered),
        best_kept[0] if best_kept else float_point, ordered[0],
    )  # fmt: skip


def _steps(
    fastest: Trial, float_trial: Trial, prepared: Prepared, ask: Evaluator
) -> list[Downgrade]:
    plan = fastest.plan
    gains = region_gains(fastest, float_trial.engine, ask.judge.objective)
    regions = [region for region in plan.regions if region.quantized]
    own = {region.name: _entries(plan, region.name) for region in regions}
    found = [(region, own[region.name], gains[region.name], "") for region in regions]
    for fmt in _other_formats(prepared):
        found += _in_format(fmt, regions, fastest, float_trial, prepared, ask)
    alone = [_only(plan, region, entries) for region, entries, _, _ in found]
    outputs = ask.outputs(alone)
    options: dict[str, list[Option]] = {}
    for (region, entries, gain, fmt), near in zip(found, outputs, strict=True):
        option = Option(fmt or plan.format, noise_ratio(ask.exact, near), gain, entries)
        options.setdefault(region.name, []).append(option)
    return downgrades([(region, options[region.name]) for region in regions])


def _entries(plan: Plan, region: str) -> tuple[QuantizedTensor, ...]:
    return tuple(entry for entry in plan.tensors if entry.region == region)


def _only(plan: Plan, region: Region, entries: tuple[QuantizedTensor, ...]) -> Plan:
    """The plan with one region alone."""
    others = [other.name for other in plan.regions if other.name != region.name]
    return dataclasses.replace(plan.without(others, "float"), tensors=entries)


def _other_formats(prepared: Prepared) -> list[str]:
    """Formats that the target runs besides the plan's."""
    found = []
    for fmt in USER_FORMATS:
        if fmt == prepared.job.options.format:
            continue
        try:
            prepared.job.target.rules(fmt)
        except TargetError:
            continue
        found.append(fmt)
    return found


def _in_format(
    fmt: str,
    regions: Sequence[Region],
    fastest: Trial,
    float_trial: Trial,
    prepared: Prepared,
    ask: Evaluator,
) -> list[tuple[Region, tuple[QuantizedTensor, ...], float, str]]:
    """The regions in another format, with what they save there, all compiled together."""
    options = dataclasses.replace(prepared.job.options, format=fmt)
    other = everything(dataclasses.replace(prepared.job, options=options))
    entries = {
        region.name: _renamed(_entries(other, region.name), fmt, prepared.ranges)
        for region in regions
    }
    changed = [region for region in regions if entries[region.name]]
    steps = [Downgrade(r, Option(fmt, 0.0, 0.0, entries[r.name]), 0.0, 0.0) for r in changed]
    plan = apply(fastest.plan, steps)
    outcome = ask.judge.outcomes([plan])[0]
    if outcome.engine is None:
        return []
    trial = Trial(plan, outcome.engine, outcome.served, prepared.job.model)
    gains = region_gains(trial, float_trial.engine, ask.judge.objective)
    return [(region, entries[region.name], gains[region.name], fmt) for region in changed]


def _renamed(
    entries: tuple[QuantizedTensor, ...], fmt: str, ranges: Mapping[str, Range]
) -> tuple[QuantizedTensor, ...]:
    """Entries with scale groups of their own format; none where a tensor was not calibrated."""
    for entry in entries:
        if entry.kind == "activation" and not entry.known_amax and entry.tensor not in ranges:
            return ()
    return tuple(dataclasses.replace(e, group=f"{e.group}|{fmt}") for e in entries)


def _curve(ask: Evaluator, steps: list[Downgrade], bar: float) -> list[Point]:
    """Plans evenly spread over the steps, then around the bar (case 3)."""
    count = len(steps)
    known: dict[int, Point] = {}

    def look(numbers: Sequence[int]) -> None:
        fresh = [n for n in dict.fromkeys(numbers) if n not in known]
        found = ask.points([steps[:n] for n in fresh])
        known.update(zip(fresh, found, strict=True))

    look([0, *(count * part // SPREAD for part in range(1, SPREAD)), count])
    for _ in range(BISECTIONS):
        good = min((n for n, point in known.items() if point.score >= bar), default=count)
        bad = max((n for n, p in known.items() if p.score < bar and n < good), default=good)
        between = [bad + (good - bad) * part // 4 for part in (1, 2, 3)]
        if good - bad <= 1:
            break
        look(between)
    return list(known.values())


def _worst_first(ask: Evaluator, steps: list[Downgrade]) -> list[Point]:
    """Plans less the regions with the largest errors: gains do not add up in a chain of regions that
    hand tensors on to each other, and then the order of steps is a poor one."""
    by_error = sorted(steps, key=lambda step: (-step.removes, step.region.name))
    counts = [count for count in WORST if count < len(steps)]
    return ask.points([by_error[:count] for count in counts]) if counts else []


def _cleaned(ask: Evaluator, kept: list[Point], float_trial: Trial) -> list[Point]:
    """The fastest plans that keep the bar, less what loses in them (case 5)."""
    fastest = sorted(kept, key=lambda point: point.value)[:CLEANED]
    found = []
    for point in fastest:
        if not point.plan.tensors:
            continue
        judged = keep_what_pays(
            _without_figures(point.plan), float_trial.engine, ask.judge.trial, min_gain_percent=0.0
        )
        if isinstance(judged, Trial) and judged.plan.tensors != point.plan.tensors:
            found.append(ask.point_of(judged.plan))
    return found


def _without_figures(plan: Plan) -> Plan:
    """Reasons less the figures of an earlier judgement: the new one writes its own."""

    def plain(region: Region) -> Region:
        head, mark, tail = region.reason.rpartition("; ")
        return dataclasses.replace(
            region, reason=head if mark and " us against " in tail else region.reason
        )

    regions = tuple(plain(r) if r.quantized else r for r in plan.regions)
    return dataclasses.replace(plan, regions=regions)


def _taken_back(ask: Evaluator, best: Point, bar: float) -> list[Point]:
    """Plans with one step less each, the dearest first, and then with several of those that still
    keep the bar (case 4)."""
    by_cost = sorted(best.steps, key=lambda step: step.rate)[:TAKEN_BACK]
    single = ask.points([_less(best, [out]) for out in by_cost]) if by_cost else []
    pays = [
        (point.value, number)
        for number, point in enumerate(single)
        if point.score >= bar and point.value < best.value
    ]
    order = [by_cost[number] for _, number in sorted(pays)]
    several = [_less(best, order[:count]) for count in (2, 4, len(order)) if count <= len(order)]
    return [*single, *(ask.points(several) if len(order) > 1 else [])]


def _less(point: Point, out: Sequence[Downgrade]) -> list[Downgrade]:
    return [step for step in point.steps if not any(step is other for other in out)]
