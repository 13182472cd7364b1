"""Which questions are open for a plan, and in which order they are asked."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence

from fuseq.placement.plan import Plan
from fuseq.trials.moves import Move, moves_from, together
from fuseq.trials.packing import Problem
from fuseq.trials.points import Points
from fuseq.trials.surroundings import Surroundings, labels, zone

MAX_TOGETHER = 400
"""Pairs of neighbours offered for one plan."""

_PAIRED = frozenset({"leave", "quantize", "store", "pair", "unpair"})


@dataclasses.dataclass
class Problems:
    """Remembers which problems were answered, and what single moves lost.

    Attributes:
        points: What may be quantized.
        around: Of the graph.
        chance: Orders what has the same promise; seeded.
    """

    points: Points
    around: Surroundings
    chance: random.Random
    answers: dict[str, float] = dataclasses.field(default_factory=dict)
    hopes: dict[str, float] = dataclasses.field(default_factory=dict)
    tangled: dict[str, int] = dataclasses.field(default_factory=dict)
    asked: dict[tuple[str, str, str], int] = dataclasses.field(default_factory=dict)

    def open(
        self, plan: Plan, weight: Mapping[str, float], saved: Mapping[str, float]
    ) -> list[Problem]:
        """Unanswered problems, the most promising first; moves together once no single is left.

        Args:
            plan: The best plan.
            weight: What each node's kernels cost in it.
            saved: What each of its regions saves against float.
        """
        words = labels(self.around, plan)
        grouped = _grouped(moves_from(plan, self.points), words)
        single = self._unanswered(grouped)
        if not single:
            single = self._unanswered(self._together(grouped, words))
            return sorted(single, key=lambda p: -self.hopes[p.key])
        return sorted(single, key=lambda p: (self._times(p), -_promise(p, weight, saved), p.key))

    def close(self, problem: Problem, gain: float) -> None:
        """The problem is answered: its move gained this much in one place."""
        self.answers[problem.key] = gain
        move = problem.moves[0]
        name = (move.kind, move.subject, move.detail)
        self.asked[name] = self.asked.get(name, 0) + 1

    def apart(self, problem: Problem) -> None:
        """The problem could not be told from others: further apart next time."""
        self.tangled[problem.key] = self.tangled.get(problem.key, 0) + 1

    def _unanswered(self, grouped: Mapping[str, Sequence[Move]]) -> list[Problem]:
        return [
            Problem(key, tuple(moves), self.tangled.get(key, 0))
            for key, moves in grouped.items()
            if key not in self.answers
        ]

    def _times(self, problem: Problem) -> int:
        return max(self.asked.get((m.kind, m.subject, m.detail), 0) for m in problem.moves)

    def _together(
        self, grouped: Mapping[str, Sequence[Move]], words: Mapping[str, str]
    ) -> dict[str, list[Move]]:
        found: dict[str, list[Move]] = {}
        for key, moves in grouped.items():
            if len(moves) > 1:
                joined = together(moves)
                name = _key(joined, words, "everywhere")
                found[name] = [joined]
                self.hopes[name] = self.answers.get(key, 0.0)
        neighbours = list(self._neighbours(grouped))
        self.chance.shuffle(neighbours)
        for left, right, hope in sorted(neighbours, key=lambda n: -n[2])[:MAX_TOGETHER]:
            joined = together([left, right])
            name = _key(joined, words, "together")
            found.setdefault(name, []).append(joined)
            self.hopes[name] = hope
        return found

    def _neighbours(
        self, grouped: Mapping[str, Sequence[Move]]
    ) -> Iterable[tuple[Move, Move, float]]:
        """Moves of two problems on neighbouring nodes, with the sum of their single gains."""
        places: dict[str, list[tuple[str, Move]]] = {}
        for key, moves in grouped.items():
            move = moves[len(moves) // 2]
            if move.kind in _PAIRED:
                for node in zone(self.around, move.nodes, 1):
                    places.setdefault(node, []).append((key, move))
        seen = set[tuple[str, str]]()
        for found in places.values():
            for number, (key, move) in enumerate(found):
                for other_key, other in found[number + 1 :]:
                    pair = (min(key, other_key), max(key, other_key))
                    if key == other_key or pair in seen or move.subject == other.subject:
                        continue
                    seen.add(pair)
                    hope = self.answers.get(key, 0.0) + self.answers.get(other_key, 0.0)
                    yield move, other, hope


def _grouped(moves: Iterable[Move], words: Mapping[str, str]) -> dict[str, list[Move]]:
    found: dict[str, list[Move]] = {}
    for move in moves:
        found.setdefault(_key(move, words, "single"), []).append(move)
    return found


def _key(move: Move, words: Mapping[str, str], how: str) -> str:
    """Equal for equal moves in equal surroundings."""
    place = [words.get(node, "") for node in move.nodes]
    text = "\n".join((how, move.kind, move.detail, *place))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _promise(problem: Problem, weight: Mapping[str, float], saved: Mapping[str, float]) -> float:
    """What the kernels around all places cost, for a move cannot gain more; of a move that leaves
    regions in float, less what they save (twice: the kernels will cost that much more)."""
    cost = sum(weight.get(node, 0.0) for move in problem.moves for node in set(move.nodes))
    if problem.moves[0].kind == "leave":
        cost -= 2 * sum(saved.get(move.subject, 0.0) for move in problem.moves)
    return cost
