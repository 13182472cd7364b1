"""Which of several moves tried in one compile gained what: the difference of two engines, in parts.

Moves that lie apart change different kernels. Kernels that are the same in both engines are left
out; the others, joined where they have a node in common, fall into parts, and a part belongs to the
move whose surroundings it touches. So one compile judges many moves, and 24 equal blocks can try 24
different ones. A compile of what is taken over confirms the sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fuseq.targets.base import Engine, Kernel
from fuseq.trials.objective import Objective, kernel_value


@dataclasses.dataclass(frozen=True)
class Attribution:
    """Gains by move; positive is better.

    Attributes:
        gains: Gain of each move, in the objective's unit; 0 where it changed no kernel.
        entangled: Numbers of moves that changed kernels in common, whose gains are not known apart.
        rest: Gain of what no move's surroundings touch (kernels that find less or more in L2).
    """

    gains: tuple[float, ...]
    entangled: frozenset[int]
    rest: float


def attribute(
    base: Engine,
    tried: Engine,
    zones: Sequence[frozenset[str]],
    homes: Mapping[str, frozenset[str]],
    objective: Objective,
) -> Attribution:
    """Split the difference of two engines among moves.

    Args:
        base: Engine before the moves.
        tried: Engine with all of them.
        zones: Nodes around each move.
        homes: Nodes of the float graph that an inserted node stands for, by its name.
        objective: What is counted.
    """
    changed = _changed(base, tried, objective)
    parts = _parts([(nodes, gain) for nodes, gain in changed], homes)
    gains, entangled, rest = [0.0] * len(zones), set[int](), 0.0
    for nodes, gain in parts:
        touched = [number for number, zone in enumerate(zones) if not zone.isdisjoint(nodes)]
        if not touched:
            rest += gain
            continue
        if len(touched) > 1:
            entangled.update(touched)
        for number in touched:
            gains[number] += gain / len(touched)
    return Attribution(tuple(gains), frozenset(entangled), rest)


def _changed(
    base: Engine, tried: Engine, objective: Objective
) -> list[tuple[tuple[str, ...], float]]:
    """Nodes and gain of the kernels that differ; a kernel's loss is a negative gain."""
    left: dict[tuple[object, ...], list[tuple[tuple[str, ...], float]]] = {}
    for kernel, nodes in _with_nodes(base):
        left.setdefault(_identity(kernel, nodes), []).append(
            (nodes, kernel_value(kernel, objective))
        )
    found = []
    for kernel, nodes in _with_nodes(tried):
        same = left.get(_identity(kernel, nodes))
        if same:
            _, value = same.pop()
            gain = value - kernel_value(kernel, objective)
            if gain:
                found.append((nodes, gain))
        else:
            found.append((nodes, -kernel_value(kernel, objective)))
    found += [item for items in left.values() for item in items]
    return found


def _with_nodes(engine: Engine) -> list[tuple[Kernel, tuple[str, ...]]]:
    """Kernels with their nodes; a kernel without any (a copy) has those of its reader."""
    reading = {tensor.name: kernel.nodes for kernel in engine.kernels for tensor in kernel.inputs}
    return [
        (
            kernel,
            kernel.nodes
            or next((reading[t.name] for t in kernel.outputs if t.name in reading), ()),
        )
        for kernel in engine.kernels
    ]


def _identity(kernel: Kernel, nodes: tuple[str, ...]) -> tuple[object, ...]:
    shapes = tuple((t.shape, t.dtype) for t in (*kernel.inputs, *kernel.outputs))
    return (frozenset(nodes), kernel.compiler_type, shapes)


def _parts(
    changed: Sequence[tuple[tuple[str, ...], float]], homes: Mapping[str, frozenset[str]]
) -> list[tuple[set[str], float]]:
    """Join changed kernels that have a node in common; inserted nodes count as the float graph's."""
    parts: list[tuple[set[str], set[str], float]] = []
    for nodes, gain in changed:
        own, wide, total = set(nodes), set(nodes), gain
        for node in nodes:
            wide |= homes.get(node, frozenset())
        apart = []
        for part in parts:
            if part[0].isdisjoint(own):
                apart.append(part)
            else:
                own, wide, total = own | part[0], wide | part[1], total + part[2]
        parts = [*apart, (own, wide, total)]
    return [(wide, total) for _, wide, total in parts]
