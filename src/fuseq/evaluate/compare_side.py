"""One of two things that are compared: what values it has, and how they are computed for a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from fuseq.calibration.batches import Batch

RunBatch: TypeAlias = Callable[[Batch], list[np.ndarray]]
"""Computes the chosen values of one batch, in the order in which they were chosen."""


@dataclasses.dataclass(frozen=True)
class Value:
    """One value that a side can give.

    Attributes:
        name: Its name.
        op_type: Operator that makes it.
        node: Name of that node.
        parents: Names of the values that it is computed from; constants are left out.
        module: Module of the user's model, "" if unknown.
        source: Source line, "" if unknown.
        is_float: It can be compared.
    """

    name: str
    op_type: str
    node: str
    parents: tuple[str, ...]
    module: str
    source: str
    is_float: bool


@dataclasses.dataclass(frozen=True)
class Side:
    """A model, a module or recorded arrays.

    Attributes:
        label: For people.
        runner: What computes it: ``onnxruntime:cpu, as written``.
        inputs: Names of its inputs, in order; empty where batches are not looked at.
        outputs: Names of its outputs, in order.
        values: Every value of its main graph in graph order, outputs included.
        sizes: Bytes of each value as float32, by name, for the shapes of a batch; values of unknown
            size are absent.
        open: Makes a function that computes the values named; called once for each group of them.
            The second argument is the threads of one operator.
        in_order: Its batches must come in the data's order, one at a time.
    """

    label: str
    runner: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: tuple[Value, ...]
    sizes: Callable[[Batch], Mapping[str, int]]
    open: Callable[[Sequence[str], int], RunBatch]
    in_order: bool = False
