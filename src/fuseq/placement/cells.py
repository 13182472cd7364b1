"""Cells: regions that share a kernel in the float or the planned engine, and are judged together.

A kernel can serve several regions (a LayerNorm that also writes the next layer's FP8 input). Cells
share no kernel: leaving one in float changes no other cell's kernels, only what lies in the cache
between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.placement.plan import Plan
from fuseq.targets.base import Engine, Kernel


@dataclasses.dataclass(frozen=True)
class Trial:
    """A plan, the quantized model and its engine.

    ``served`` says which regions each inserted node serves, ``notes`` what typing the model told.
    """

    plan: Plan
    engine: Engine
    served: Mapping[str, tuple[str, ...]]
    model: ir.Model
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Cell:
    """Regions judged together, with their predicted time in both engines."""

    regions: tuple[str, ...]
    float_us: float
    quantized_us: float

    @property
    def gain_us(self) -> float:
        """Predicted time saved by quantizing; negative when it costs."""
        return self.float_us - self.quantized_us


def cells_of(trial: Trial, float_engine: Engine) -> list[Cell]:
    """Group regions by shared kernels and sum each group's predicted times in both engines."""
    owners = owners_of(trial)
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            name = parent[name]
        return name

    charged: list[tuple[Kernel, str, bool]] = []
    for engine, is_float in ((float_engine, True), (trial.engine, False)):
        readers = _nodes_of_readers(engine)
        for kernel in engine.kernels:
            nodes = kernel.nodes or readers.get(kernel.name, ())
            names = [name for node in nodes for name in owners.get(node, (node,))]
            for name in names[1:]:
                parent[root(name)] = root(names[0])
            if names:
                charged.append((kernel, names[0], is_float))
    sums: dict[str, list[float]] = {}
    for kernel, name, is_float in charged:
        pair = sums.setdefault(root(name), [0.0, 0.0])
        pair[0 if is_float else 1] += kernel.predicted_us or 0.0
    members: dict[str, list[str]] = {}
    for region in trial.plan.regions:
        if region.quantized:
            members.setdefault(root(region.name), []).append(region.name)
    return [Cell(tuple(regions), *sums.get(name, [0.0, 0.0])) for name, regions in members.items()]


def owners_of(trial: Trial) -> dict[str, tuple[str, ...]]:
    """Regions by node name: of the float graph and of the inserted nodes."""
    owners: dict[str, tuple[str, ...]] = {}
    for region in trial.plan.regions:
        if region.quantized:
            for node in region.nodes:
                owners[node] = (*owners.get(node, ()), region.name)
    owners.update(trial.served)
    return owners


def _nodes_of_readers(engine: Engine) -> dict[str, tuple[str, ...]]:
    """For kernels without nodes (layout copies), by name: the nodes of the kernel that reads them.

    In float such a copy can stand where the planned engine's Q changes the layout on its way.
    """
    reading = {tensor.name: kernel.nodes for kernel in engine.kernels for tensor in kernel.inputs}
    return {
        kernel.name: next((reading[t.name] for t in kernel.outputs if t.name in reading), ())
        for kernel in engine.kernels
        if not kernel.nodes
    }
