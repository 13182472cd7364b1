"""A typed Q/DQ model as a callable, one graph for each set of input shapes.

On a GPU the graph is compiled by torch.compile, which fuses what is left between our kernels, and
recorded as a CUDA graph; on a CPU it runs as it is, for its numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from fuseq.errors import ModelError, TargetError
from fuseq.targets.torch_cuda.lowering import Lowered, lower

_WARM_UPS = 3
Run = Callable[..., tuple[torch.Tensor, ...]]


@dataclasses.dataclass
class Compiled:
    """Runs one model.

    Attributes:
        model: Typed, with Q/DQ or without.
        device: Where it runs.
        graphs: Record CUDA graphs on a GPU; the result of a call is then overwritten by the next
            call with the same shapes unless ``copies`` is set.
        copies: Return copies of a CUDA graph's results.
    """

    model: ir.Model
    device: torch.device
    graphs: bool = True
    copies: bool = True
    _runs: dict[tuple[object, ...], Run] = dataclasses.field(default_factory=dict)
    _lowered: dict[tuple[object, ...], Lowered] = dataclasses.field(default_factory=dict)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run on inputs in the model's order; outputs in its order.

        Raises:
            ModelError: The number of inputs or a rank does not fit.
            TargetError: The model has an operator that this target does not run.
        """
        key = tuple(tuple(tensor.shape) for tensor in inputs)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = self._made(inputs)
        return run(*inputs)

    def lowered(self, shapes: Mapping[str, tuple[int, ...]]) -> Lowered:
        """The graph for static shapes, before any compiler."""
        key = tuple(shapes.items())
        if key not in self._lowered:
            self._lowered[key] = lower(self.model, shapes, self.device)
        return self._lowered[key]

    def _made(self, inputs: Sequence[torch.Tensor]) -> Run:
        shapes = _shapes(self.model, inputs)
        lowered = self.lowered(shapes)
        if self.device.type != "cuda":
            return _on_device(lowered.module, self.device)
        _check_capability(lowered)
        compiled = torch.compile(lowered.module, dynamic=False)
        if not self.graphs:
            return _on_device(compiled, self.device)
        return _recorded(compiled, [tensor.to(self.device) for tensor in inputs], self.copies)


def _shapes(model: ir.Model, inputs: Sequence[torch.Tensor]) -> dict[str, tuple[int, ...]]:
    declared = list(model.graph.inputs)
    if len(declared) != len(inputs):
        names = ", ".join(repr(value.name) for value in declared)
        raise ModelError(f"the model takes {len(declared)} inputs ({names}), {len(inputs)} given.")
    shapes = {}
    for value, tensor in zip(declared, inputs, strict=True):
        rank = None if value.shape is None else len(value.shape)
        if rank is not None and rank != tensor.dim():
            raise ModelError(
                f"input {value.name!r} has {rank} axes, the tensor given has {tensor.dim()}."
            )
        shapes[value.name or ""] = tuple(tensor.shape)
    return shapes


def _check_capability(lowered: Lowered) -> None:
    kinds = {each.call.args[0].meta["val"].dtype for each in lowered.fused}  # type: ignore[union-attr]
    if torch.float8_e4m3fn in kinds and torch.cuda.get_device_capability() < (8, 9):
        found = ".".join(map(str, torch.cuda.get_device_capability()))
        raise TargetError(
            f"torch:cuda: this GPU has compute capability {found}; FP8 needs 8.9 or newer. Use "
            "--format int8."
        )


def _on_device(function: Callable[..., Any], device: torch.device) -> Run:
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return tuple(function(*(tensor.to(device) for tensor in inputs)))

    return run


def _recorded(function: Callable[..., Any], inputs: Sequence[torch.Tensor], copies: bool) -> Run:
    """Record one call as a CUDA graph; later calls copy their inputs in and replay it.

    Source: PyTorch documentation, "CUDA semantics", section "CUDA Graphs" (warm-up on a side stream,
    static inputs).
    """
    static = [tensor.clone() for tensor in inputs]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(_WARM_UPS):
            function(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        results = tuple(function(*static))

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for target, source in zip(static, given, strict=True):
            target.copy_(source, non_blocking=True)
        graph.replay()
        return tuple(result.clone() for result in results) if copies else results

    return run
