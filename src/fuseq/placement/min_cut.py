"""Minimum cut of a directed network: the exact cheapest split into two sides.

Algorithm: Dinic's (Dinitz 1970, "Algorithm for solution of a problem of maximum flow"): shortest
augmenting paths, level by level. Capacities are whole numbers, so that it ends and is exact.
"""

from __future__ import annotations

from collections import deque

UNCUTTABLE = 1 << 62
"""Capacity of an edge that no cheapest cut may cross."""


class Network:
    """Nodes are numbered from 0; ``SOURCE`` and ``SINK`` exist from the start."""

    SOURCE = 0
    SINK = 1

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._left: list[int] = []

    def add_node(self) -> int:
        """Add a node and return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """Let ``capacity`` be paid when ``start`` is on the source's side and ``end`` is not."""
        for node, other, room in ((start, end, capacity), (end, start, 0)):
            self._edges[node].append(len(self._to))
            self._to.append(other)
            self._left.append(room)

    def source_side(self) -> set[int]:
        """Saturate the network; return the smallest source side of a cheapest cut."""
        while True:
            levels = self._levels()
            if levels[self.SINK] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            self._block(levels)

    def _levels(self) -> list[int]:
        """Edges from the source to each node along edges with room; -1 where there is no way."""
        levels = [-1] * len(self._edges)
        levels[self.SOURCE] = 0
        waiting = deque([self.SOURCE])
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                other = self._to[edge]
                if self._left[edge] > 0 and levels[other] < 0:
                    levels[other] = levels[node] + 1
                    waiting.append(other)
        return levels

    def _block(self, levels: list[int]) -> None:
        """Fill shortest paths until each has a full edge."""
        following = [0] * len(self._edges)
        path: list[int] = []
        node = self.SOURCE
        while True:
            if node == self.SINK:
                room = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= room
                    self._left[edge ^ 1] += room
                node, path = self.SOURCE, []
            elif following[node] < len(self._edges[node]):
                edge = self._edges[node][following[node]]
                if self._left[edge] > 0 and levels[self._to[edge]] == levels[node] + 1:
                    path.append(edge)
                    node = self._to[edge]
                else:
                    following[node] += 1
            elif path:
                node = self._to[path.pop() ^ 1]
                following[node] += 1
            else:
                return
