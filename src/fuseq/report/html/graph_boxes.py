"""Boxes of fused kernels around the nodes that they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fuseq.report.html.graph_layout import NODE_HEIGHT, NODE_WIDTH, Point

_MARGIN = 9


@dataclasses.dataclass(frozen=True)
class Box:
    """One kernel of two or more drawn nodes.

    Attributes:
        kernel: Its number.
        left, top, right, bottom: Around all of its nodes, pixels.
        alone: No other node stands inside; else a rectangle would lie, and the drawing joins the
            kernel's nodes one by one.
    """

    kernel: int
    left: int
    top: int
    right: int
    bottom: int
    alone: bool


def boxes(points: Sequence[Point], kernels: Sequence[int]) -> tuple[Box, ...]:
    """Box every kernel.

    Args:
        points: Centre of each node.
        kernels: Kernel of each node, -1 for none; as many as points.
    """
    if not points:
        return ()
    x, y = np.array(points, dtype=np.int64).T
    of = np.array(kernels, dtype=np.int64)
    found = []
    for kernel in np.unique(of[of >= 0]):
        mine = of == kernel
        if mine.sum() < 2:
            continue
        left, right = int(x[mine].min()) - NODE_WIDTH // 2, int(x[mine].max()) + NODE_WIDTH // 2
        top, bottom = int(y[mine].min()) - NODE_HEIGHT // 2, int(y[mine].max()) + NODE_HEIGHT // 2
        inside = (
            (x + NODE_WIDTH // 2 > left - _MARGIN)
            & (x - NODE_WIDTH // 2 < right + _MARGIN)
            & (y + NODE_HEIGHT // 2 > top - _MARGIN)
            & (y - NODE_HEIGHT // 2 < bottom + _MARGIN)
        )
        found.append(
            Box(
                int(kernel), left - _MARGIN, top - _MARGIN, right + _MARGIN, bottom + _MARGIN,
                bool((inside <= mine).all()),
            )
        )  # fmt: skip
    return tuple(found)
