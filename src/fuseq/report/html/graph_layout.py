"""Positions of a drawn graph: layers from top to bottom, by the fast-sugiyama package (MIT licence).

Sugiyama's method (Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System
Structures", IEEE SMC 11(2), 1981) puts a bend on every layer that an edge crosses. A mask that is made
once and read by every block would cost thousands of bends, so edges over more than
:data:`LONGEST_ROUTED` layers are left out of the layout and drawn straight. Nodes stand as early or as late
as their neighbours allow, whichever makes the shorter edges: the package's third way, the network simplex,
saves 1 % of the bends of real models and takes minutes on a tangled graph of 3,000 nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from fuseq.errors import MissingExtraError

NODE_WIDTH = 150
NODE_HEIGHT = 32
COLUMN_STEP = 178
LAYER_STEP = 66
LONGEST_ROUTED = 30
_UNIT = 72.0
_COMPONENT_GAP = 90

Point = tuple[int, int]
Edge = tuple[int, int]
Ranking = Literal["up", "down"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where nodes stand.

    Attributes:
        points: Centre of each node, pixels, y downwards, by node number.
        bends: Points between the ends of an edge, for edges that need any.
    """

    points: tuple[Point, ...]
    bends: Mapping[Edge, tuple[Point, ...]]


def layered(count: int, edges: Sequence[Edge]) -> Layout:
    """Lay out ``count`` nodes; equal inputs give equal positions.

    Args:
        count: Number of nodes.
        edges: Pairs of node numbers, from producer to reader; the graph may have several parts.

    Raises:
        MissingExtraError: The ``report`` extra is not installed.
    """
    ranking, kept = routed(count, edges)
    placed: dict[int, Point] = {}
    bends: dict[Edge, tuple[Point, ...]] = {}
    left = 0
    for vertices, hops in _components(kept, ranking):
        least = min(x for x, _ in vertices.values())
        top = max(y for _, y in vertices.values())
        placed_here = {
            vertex: (
                round((x - least) * COLUMN_STEP / _UNIT),
                round((top - y) * LAYER_STEP / _UNIT),
            )
            for vertex, (x, y) in vertices.items()
        }
        moved = _upright(placed_here, left)
        placed.update({vertex: point for vertex, point in moved.items() if vertex < count})
        bends.update(_bends(moved, hops, count))
        left = max(x for x, _ in moved.values()) + NODE_WIDTH + _COMPONENT_GAP
    for vertex in range(count):
        if vertex not in placed:
            placed[vertex] = (left, 0)
            left += COLUMN_STEP
    return Layout(tuple(placed[vertex] for vertex in range(count)), bends)


def routed(count: int, edges: Sequence[Edge]) -> tuple[Ranking, list[Edge]]:
    """How nodes are ranked, and the edges that the layout is given.

    Ranked ``up`` (as early as they can) or ``down`` (as late), whichever makes the shorter edges. Given are
    the short edges, and one where a node has no other.
    """
    unique = sorted({edge for edge in edges if edge[0] != edge[1]})
    early = _longest_paths(count, unique)
    late = [-rank for rank in _longest_paths(count, [(b, a) for a, b in unique])]
    spans = {"up": _span(unique, early), "down": _span(unique, late)}
    ranking: Ranking = "up" if spans["up"] < spans["down"] else "down"
    layer = early if ranking == "up" else late
    kept = {e for e in unique if layer[e[1]] - layer[e[0]] <= LONGEST_ROUTED}
    joined = {node for edge in kept for node in edge}
    for edge in sorted(unique, key=lambda e: layer[e[1]] - layer[e[0]]):
        if edge[0] not in joined or edge[1] not in joined:
            kept.add(edge)
            joined.update(edge)
    return ranking, sorted(kept)


def _span(edges: Sequence[Edge], layer: Sequence[int]) -> int:
    return sum(abs(layer[reader] - layer[source]) for source, reader in edges)


def _longest_paths(count: int, edges: Sequence[Edge]) -> list[int]:
    """Longest path from a source to each node; a node on a cycle counts from where it is entered."""
    readers: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, reader in edges:
        readers[source].append(reader)
        waiting[reader] += 1
    layer = [0] * count
    ready = [node for node in range(count) if not waiting[node]]
    while ready:
        node = ready.pop()
        for reader in readers[node]:
            layer[reader] = max(layer[reader], layer[node] + 1)
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return layer


def _components(
    edges: Sequence[Edge], ranking: Ranking
) -> list[tuple[dict[int, tuple[float, float]], list[Edge]]]:
    """Coordinates of nodes and bends of each connected part, the largest first."""
    if not edges:
        return []
    try:
        from fast_sugiyama import from_edges  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("fast-sugiyama, which lays out the graph,", "report") from error
    parts = [
        ({int(vertex): point for vertex, point in positions}, list(hops or ()))
        for positions, _, _, hops in from_edges(
            list(edges), vertex_spacing=_UNIT, transpose=False, ranking_type=ranking
        )
    ]
    return sorted(parts, key=lambda part: (-len(part[0]), min(part[0])))


def _upright(points: Mapping[int, Point], left: int) -> dict[int, Point]:
    """Move layers sideways so that every layer of one vertex stands in one column.

    Such a layer is a waist that all of the graph passes (a residual Add): blocks of equal shape stand
    under each other, where the layout alone lets them drift. The part begins at ``left``.
    """
    layers: dict[int, list[int]] = {}
    for vertex, (_, y) in points.items():
        layers.setdefault(y, []).append(vertex)
    shift = 0
    shifts = {}
    column = next((points[row[0]][0] for _, row in sorted(layers.items()) if len(row) == 1), 0)
    for y, row in sorted(layers.items()):
        if len(row) == 1:
            shift = column - points[row[0]][0]
        shifts[y] = shift
    least = min(x + shifts[y] for x, y in points.values())
    return {vertex: (x + shifts[y] - least + left, y) for vertex, (x, y) in points.items()}


def _bends(
    points: Mapping[int, Point], hops: Sequence[Edge], count: int
) -> dict[Edge, tuple[Point, ...]]:
    """Follow the bends (numbers from ``count`` on) from each node to the next; straight runs shrink."""
    after = {source: reader for source, reader in hops if source >= count}
    found: dict[Edge, tuple[Point, ...]] = {}
    for source, reader in hops:
        if source >= count or reader < count:
            continue
        way, at = [], reader
        while at >= count:
            way.append(points[at])
            at = after[at]
        found[source, at] = _corners([points[source], *way, points[at]])
    return found


def _corners(way: Sequence[Point]) -> tuple[Point, ...]:
    """The inner points at which the way changes its column."""
    inner = range(1, len(way) - 1)
    return tuple(way[i] for i in inner if not way[i - 1][0] == way[i][0] == way[i + 1][0])
