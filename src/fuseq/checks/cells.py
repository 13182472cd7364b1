"""Judges parts of a quantized engine against the float engine of the same model.

A kernel can serve several layers, so nodes that share a kernel in either engine are one cell, as are a
pair and what reads it, a layer and its epilogue, and the nodes of one attention
(:mod:`fuseq.placement.pays` judges plans in the same way). A Q that runs alone is stranded only in a
cell that is predicted slower than in float.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.checks.reading import layer_at
from fuseq.passes.quantizers import is_dequantize, is_quantize
from fuseq.placement.patterns import attention_at, epilogue
from fuseq.targets.base import Engine, Kernel


@dataclasses.dataclass(frozen=True)
class Cells:
    """Cell by node name, and each cell's predicted times in both engines, microseconds."""

    root_of: Mapping[str, str]
    times_us: Mapping[str, tuple[float, float]]

    @staticmethod
    def between(graph: ir.Graph, engine: Engine, float_engine: Engine) -> Cells:
        """Group the nodes of both engines; their kernels name the nodes of ``graph``."""
        groups = _Groups()
        for kernel in (*engine.kernels, *float_engine.kernels):
            groups.join(kernel.nodes)
        for node in graph:
            groups.join(_related(node))
        sums: dict[str, list[float]] = {}
        for side, made in enumerate((float_engine, engine)):
            users = _users(made)
            for kernel in made.kernels:
                owner = kernel.nodes[0] if kernel.nodes else users.get(kernel, "")
                pair = sums.setdefault(groups.root(owner), [0.0, 0.0])
                pair[side] += kernel.predicted_us or 0.0
        roots = {name: groups.root(name) for name in list(groups.parent)}
        return Cells(roots, {root: (pair[0], pair[1]) for root, pair in sums.items()})

    def gain_us(self, name: str) -> float:
        """What quantizing the cell of node ``name`` saves; negative when it costs."""
        float_us, quantized_us = self.times_of(name)
        return float_us - quantized_us

    def times_of(self, name: str) -> tuple[float, float]:
        """Predicted time of the node's cell in float and quantized."""
        return self.times_us.get(self.root_of.get(name, name), (0.0, 0.0))


def _users(engine: Engine) -> dict[Kernel, str]:
    """For kernels of no node (a change of memory layout): a node that reads what they write.

    In float such a copy stands where the Q of the quantized engine changes the layout on the way, so
    it belongs to the same cell; at the end of the model it belongs to what wrote its input.
    """
    reads: dict[str, str] = {}
    writes: dict[str, str] = {}
    for kernel in engine.kernels:
        if kernel.nodes:
            reads.update((tensor.name, kernel.nodes[0]) for tensor in kernel.inputs)
            writes.update((tensor.name, kernel.nodes[0]) for tensor in kernel.outputs)
    found = {}
    for kernel in reversed(engine.kernels):
        if not kernel.nodes:
            after = [reads[t.name] for t in kernel.outputs if t.name in reads]
            before = [writes[t.name] for t in kernel.inputs if t.name in writes]
            found[kernel] = next(iter((*after, *before)), "")
            reads.update((tensor.name, found[kernel]) for tensor in kernel.inputs)
    return found


class _Groups:
    """Union-find over node names."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    def root(self, name: str) -> str:
        self.parent.setdefault(name, name)
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def join(self, names: tuple[str, ...]) -> None:
        for name in names[1:]:
            self.parent[self.root(name)] = self.root(names[0])


def _related(node: ir.Node) -> tuple[str, ...]:
    """Names that belong together with ``node`` besides its kernels' nodes."""
    if is_quantize(node) or is_dequantize(node):
        users = [use.node for use in node.outputs[0].uses()]
    elif node.op_type == "Softmax":
        found = attention_at(node)
        users = [] if isinstance(found, str) else list(found.nodes)
    elif layer_at(node) is not None:
        users = epilogue(node)
    else:
        return ()
    return (node.name or "", *(user.name or "" for user in users))
