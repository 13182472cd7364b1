"""What a rule may read: the graph, the target's fusion rules, and the engines, as far as there are any."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.checks.cells import Cells
from fuseq.checks.finding import UNKNOWN_COST, Cost
from fuseq.checks.reading import Layer, layers_of
from fuseq.targets.base import Engine, Kernel, Target
from fuseq.targets.fusion import FusionRules

_BITS = {"float16": 16, "bfloat16": 16, "float": 32, "double": 64}


@dataclasses.dataclass(frozen=True)
class Context:
    """One model or engine, checked for one target.

    Attributes:
        file: Name of the checked file.
        model: The graph, constants lifted and types known; None when only an engine is there.
        target: None when only an engine is there.
        rules: What the target fuses in the file's format; None when the GPU lacks the format or
            the file has no Q/DQ.
        format: ``int8`` or ``fp8``, what most of the file's Q/DQ store; "" without Q/DQ.
        engine: What the target's compiler, or its fusion model, made; None when nothing compiled.
        float_engine: The same of the model without Q/DQ.
        refusal: The compiler's own words when it refused the model.
        simulated: ``engine`` comes from a fusion model, not from a compiler.
        batch: Stands for a dynamic first axis.
        keep_float: Globs of layers that are meant to stay float.
    """

    file: str
    model: ir.Model | None = None
    target: Target | None = None
    rules: FusionRules | None = None
    format: str = ""
    engine: Engine | None = None
    float_engine: Engine | None = None
    refusal: str = ""
    simulated: bool = False
    batch: int = 1
    keep_float: tuple[str, ...] = ()

    @property
    def target_name(self) -> str:
        """As users write it; "" without a target."""
        return self.target.name if self.target is not None else ""

    @property
    def is_gpu(self) -> bool:
        """The target is a TensorRT compiler, which types strongly and quantizes symmetrically."""
        return self.target_name.startswith("tensorrt")

    @property
    def has_built(self) -> bool:
        """The target's own compiler, not a fusion model, has built the file."""
        return self.target is not None and self.engine is not None and not self.simulated

    @property
    def graph(self) -> ir.Graph:
        """The main graph of the model; only rules that read models ask for it."""
        assert self.model is not None, "a model rule ran without a model"
        return self.model.graph

    @functools.cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every node with a constant weight."""
        return layers_of(self.graph)

    @functools.cached_property
    def _nodes(self) -> Mapping[str, ir.Node]:
        return {node.name or "": node for node in self.model.graph} if self.model else {}

    @functools.cached_property
    def _kernels(self) -> Mapping[str, tuple[Kernel, ...]]:
        found: dict[str, list[Kernel]] = {}
        for kernel in self.engine.kernels if self.engine else ():
            for name in kernel.nodes:
                found.setdefault(name, []).append(kernel)
        return {name: tuple(kernels) for name, kernels in found.items()}

    @functools.cached_property
    def cells(self) -> Cells | None:
        """Parts of the engine judged against float; None unless both engines are there."""
        if self.engine is None or self.float_engine is None or self.model is None:
            return None
        return Cells.between(self.model.graph, self.engine, self.float_engine)

    def node_named(self, name: str) -> ir.Node | None:
        """The node of the main graph called ``name``."""
        return self._nodes.get(name)

    def refused_at(self, name: str) -> bool:
        """The compiler refused the model and named this node."""
        return bool(name) and not self.simulated and f"'{name}'" in self.refusal

    def kernels_of(self, node: ir.Node | str) -> tuple[Kernel, ...]:
        """Kernels of the engine that run ``node``."""
        return self._kernels.get(node if isinstance(node, str) else node.name or "", ())

    def alone(self, *nodes: ir.Node | None) -> tuple[Kernel, ...]:
        """Kernels that do nothing but quantize or dequantize for one of ``nodes``."""
        found = [k for node in nodes if node is not None for k in self.kernels_of(node)]
        return tuple(dict.fromkeys(kernel for kernel in found if kernel.is_alone))

    def gains(self, node: ir.Node | str) -> bool:
        """Both engines are there and quantizing what surrounds ``node`` is predicted to gain."""
        name = node if isinstance(node, str) else node.name or ""
        return self.cells is not None and self.cells.gain_us(name) >= 0

    def loss_us(self, node: ir.Node | str) -> float:
        """How much longer the node's own kernels take than in float; 0 when nothing can tell."""
        if self.engine is None or self.float_engine is None:
            return 0.0
        name = node if isinstance(node, str) else node.name or ""
        here, there = (
            sum(kernel.predicted_us or 0.0 for kernel in engine.kernels if name in kernel.nodes)
            for engine in (self.engine, self.float_engine)
        )
        return here - there if there else 0.0

    def cost_of(self, kernels: tuple[Kernel, ...]) -> Cost:
        """Time and activation bytes of kernels."""
        if not kernels:
            return UNKNOWN_COST
        measured = [k.measured_us for k in kernels if k.measured_us is not None]
        predicted = [k.predicted_us for k in kernels if k.predicted_us is not None]
        times = measured or predicted
        return Cost(
            us=sum(times) if times else None,
            nbytes=sum(kernel.activation_bytes for kernel in kernels),
            measured=bool(measured),
        )

    def copy_cost(self, value: ir.Value | None) -> Cost:
        """Bytes that a Q alone moves for ``value``: it reads floats and writes 8 bits."""
        elements = self.elements(value)
        if elements is None or value is None or value.dtype is None:
            return UNKNOWN_COST
        return Cost(nbytes=elements * (_BITS.get(value.dtype.name.lower(), 16) + 8) // 8)

    def elements(self, value: ir.Value | None) -> int | None:
        """Number of elements, the batch standing for a dynamic first axis; None when unknown."""
        if value is None or value.shape is None:
            return None
        sizes = [
            dim if isinstance(dim, int) else (self.batch if axis == 0 else None)
            for axis, dim in enumerate(value.shape)
        ]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)
