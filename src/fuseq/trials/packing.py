"""Puts problems that lie apart into one plan, so that one compile answers many."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fuseq.placement.plan import Plan
from fuseq.trials.moves import Move
from fuseq.trials.surroundings import Surroundings, zone

ALONE_AFTER = 2
"""Times that a problem is tried among others before it gets a compile of its own."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One question: does this move pay in these surroundings?

    Attributes:
        key: Equal for equal questions.
        moves: The move in every place with these surroundings.
        tangled: Times that it was tried and could not be told from others.
    """

    key: str
    moves: tuple[Move, ...]
    tangled: int = 0


@dataclasses.dataclass(frozen=True)
class Probe:
    """A problem tried in one place; ``zone`` holds the nodes whose kernels it may change."""

    problem: Problem
    move: Move
    zone: frozenset[str]


def pack(
    problems: Sequence[Problem], around: Surroundings, plan: Plan, plans: int, steps: int = 2
) -> list[tuple[Plan, list[Probe]]]:
    """Up to ``plans`` plans, each with moves that lie apart; earlier problems go first.

    Args:
        problems: In the order in which they should be answered.
        around: Of the graph.
        plan: What the moves change.
        plans: Number of compiles.
        steps: Distance that a move's kernels may reach; twice as much for each time tangled.
    """
    slots: list[tuple[Plan, list[Probe], set[str]]] = []
    for problem in problems:
        if problem.tangled >= ALONE_AFTER:
            if len(slots) < plans:
                move = problem.moves[len(problem.moves) // 2]
                reach = zone(around, move.nodes, steps)
                slots.append((move.apply(plan), [Probe(problem, move, reach)], set(around.words)))
            continue
        _place(problem, around, plan, plans, steps * (1 + problem.tangled), slots)
    return [(changed, probes) for changed, probes, _ in slots]


def _place(
    problem: Problem,
    around: Surroundings,
    plan: Plan,
    plans: int,
    steps: int,
    slots: list[tuple[Plan, list[Probe], set[str]]],
) -> None:
    """Into the first plan with room around one of its places; else into a new plan, if one is left."""
    middle_first = sorted(
        range(len(problem.moves)), key=lambda n: (abs(n - len(problem.moves) // 2), n)
    )
    for number in middle_first:
        move = problem.moves[number]
        reach = zone(around, move.nodes, steps)
        for place, (changed, probes, used) in enumerate(slots):
            if used.isdisjoint(reach) and move.fits(changed):
                tried = [*probes, Probe(problem, move, reach)]
                slots[place] = (move.apply(changed), tried, used | reach)
                return
    if len(slots) < plans:
        move = problem.moves[middle_first[0]]
        reach = zone(around, move.nodes, steps)
        slots.append((move.apply(plan), [Probe(problem, move, reach)], set(reach)))
