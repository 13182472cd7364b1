"""The search itself: moves are tried many in one compile, what gains is taken over and confirmed.

1. Every move that the plan allows is a problem; moves whose surroundings are equal are one problem
   (:mod:`fuseq.trials.surroundings`), tried in one place.
2. Problems that lie apart share a compile; the difference of the engines is split among them
   (:mod:`fuseq.trials.attribution`). Those that changed kernels in common are tried further apart
   next time, and at last alone.
3. What gains is applied to all equal places at once and compiled: only what that compile confirms
   is taken over. So the plan never gets worse.
4. A change reopens the problems around it. When none is left, moves are tried together: all places
   of a problem at once, and neighbours in twos.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from fuseq.placement.cells import Trial
from fuseq.placement.plan import Plan
from fuseq.targets.base import Engine
from fuseq.trials.attribution import attribute
from fuseq.trials.gains import region_gains
from fuseq.trials.judge import Judge
from fuseq.trials.moves import Move
from fuseq.trials.objective import kernel_value
from fuseq.trials.outcome import Outcome
from fuseq.trials.packing import Probe, Problem, pack
from fuseq.trials.points import Points
from fuseq.trials.problems import Problems
from fuseq.trials.surroundings import Surroundings, zone

MIN_PART = 5e-4
"""Part of the whole that a move must gain: quantizing is paid for in accuracy."""

ZONE_STEPS = 2
"""Steps around a move's nodes in which it may change kernels."""

WAVE = 4
"""Plans compiled side by side; the same on every machine, so that the search decides the same."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One accepted move.

    Attributes:
        says: What it does.
        kind: Its kind.
        places: How many equal places it changed.
        gain: What it gained, in the objective's unit; its part of a compile that confirmed several.
        value: The objective after all that was accepted with it.
        trials: Trials up to then.
        seconds: Search clock then.
    """

    says: str
    kind: str
    places: int
    gain: float
    value: float
    trials: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Found:
    """The best plan so far."""

    plan: Plan
    outcome: Outcome
    value: float


@dataclasses.dataclass(frozen=True)
class Winner:
    """A problem whose move gained in its place."""

    problem: Problem
    move: Move
    gain: float


def climb(
    start: Found,
    points: Points,
    around: Surroundings,
    judge: Judge,
    float_engine: Engine,
    seed: int,
) -> tuple[Found, list[Step]]:
    """Improve ``start`` until the budget is spent or nothing is left to try."""
    best, steps = start, list[Step]()
    problems = Problems(points, around, random.Random(seed))
    while not judge.is_spent:
        open_problems = problems.open(
            best.plan, _weight_of(best, judge), _saved_by(best, judge, float_engine)
        )
        if not open_problems:
            break
        packed = pack(open_problems, around, best.plan, WAVE)
        outcomes = judge.outcomes([plan for plan, _ in packed])
        winners: list[Winner] = []
        for (_, probes), outcome in zip(packed, outcomes, strict=True):
            winners += _judged(best, probes, outcome, judge, problems)
        if winners and not judge.is_spent:
            best, taken = _take_over(best, winners, around, judge)
            steps += taken
    return best, steps


def _weight_of(best: Found, judge: Judge) -> dict[str, float]:
    """What the kernels of each node cost now: moves on dear kernels are tried first."""
    found: dict[str, float] = {}
    for kernel in best.outcome.engine.kernels if best.outcome.engine else ():
        for node in kernel.nodes:
            found[node] = found.get(node, 0.0) + kernel_value(kernel, judge.objective)
    return found


def _saved_by(best: Found, judge: Judge, float_engine: Engine) -> dict[str, float]:
    """What each region saves now: leaving one that saves little is tried before one that saves much."""
    if best.outcome.engine is None:
        return {}
    trial = Trial(best.plan, best.outcome.engine, best.outcome.served, judge.job.model)
    return region_gains(trial, float_engine, judge.objective)


def _judged(
    best: Found, probes: Sequence[Probe], outcome: Outcome, judge: Judge, problems: Problems
) -> list[Winner]:
    """Close what was answered; return what gained."""
    if len(probes) == 1:
        gain = best.value - judge.value(outcome)
        problems.close(probes[0].problem, gain)
        return [Winner(probes[0].problem, probes[0].move, gain)] if _pays(gain, best) else []
    if outcome.engine is None or best.outcome.engine is None:
        for probe in probes:
            problems.apart(probe.problem)
        return []
    homes = _homes(best, outcome)
    split = attribute(
        best.outcome.engine, outcome.engine, [p.zone for p in probes], homes, judge.objective
    )
    winners = []
    for number, probe in enumerate(probes):
        if number in split.entangled:
            problems.apart(probe.problem)
            continue
        gain = split.gains[number]
        problems.close(probe.problem, gain)
        if _pays(gain * len(probe.problem.moves), best):
            winners.append(Winner(probe.problem, probe.move, gain))
    return winners


def _pays(gain: float, best: Found) -> bool:
    return gain > MIN_PART * best.value


def _homes(best: Found, outcome: Outcome) -> dict[str, frozenset[str]]:
    nodes = {region.name: frozenset(region.nodes) for region in best.plan.regions}
    return {
        inserted: frozenset().union(*(nodes.get(r, frozenset({r})) for r in regions))
        for served in (best.outcome.served, outcome.served)
        for inserted, regions in served.items()
    }


def _take_over(
    best: Found, winners: list[Winner], around: Surroundings, judge: Judge
) -> tuple[Found, list[Step]]:
    """Compile the winners together, everywhere or only where they were tried; keep the best."""
    ranked = sorted(winners, key=lambda w: -w.gain * len(w.problem.moves))
    half = ranked[: (len(ranked) + 1) // 2]
    for choices in (
        [(ranked, True), (ranked, False)],
        [(half, True), (ranked[:1], True)],
        [(half[: (len(half) + 1) // 2], True), (ranked[:1], False)],
    ):
        combined = [_combined(best.plan, chosen, everywhere) for chosen, everywhere in choices]
        outcomes = judge.outcomes([plan for plan, _ in combined])
        values = [judge.value(outcome) for outcome in outcomes]
        number = values.index(min(values))
        if _pays(best.value - values[number], best):
            better = Found(combined[number][0], outcomes[number], values[number])
            return better, _steps(best, better, combined[number][1], around, judge)
        if judge.is_spent:
            break
    return best, []


def _combined(
    plan: Plan, winners: Sequence[Winner], everywhere: bool
) -> tuple[Plan, list[list[Move]]]:
    """The plan with all winners that fit beside those before them, and their moves."""
    applied: list[list[Move]] = []
    for winner in winners:
        done = []
        for move in winner.problem.moves if everywhere else (winner.move,):
            if move.fits(plan):
                plan = move.apply(plan)
                done.append(move)
        if done:
            applied.append(done)
    return plan, applied


def _steps(
    before: Found, after: Found, applied: list[list[Move]], around: Surroundings, judge: Judge
) -> list[Step]:
    """Record what was accepted; each move's gain is its part of the confirming compile."""
    zones = [zone(around, [n for move in moves for n in move.nodes], 1) for moves in applied]
    gains: Sequence[float] = [(before.value - after.value) / len(applied)] * len(applied)
    if len(applied) > 1 and before.outcome.engine and after.outcome.engine:
        homes = {**_homes(before, after.outcome), **_homes(after, after.outcome)}
        split = attribute(
            before.outcome.engine, after.outcome.engine, zones, homes, judge.objective
        )
        gains = split.gains
    return [
        Step(
            says=moves[0].says + (f" and {len(moves) - 1} like it" if len(moves) > 1 else ""),
            kind=moves[0].kind,
            places=len(moves),
            gain=gain,
            value=after.value,
            trials=judge.trials,
            seconds=judge.spent_s,
        )
        for moves, gain in zip(applied, gains, strict=True)
    ]
