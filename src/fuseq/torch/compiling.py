"""Run a prepared module's plan with PyTorch's own 8-bit products: same signature, other kernels."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fuseq.calibration.scales import Scale
from fuseq.errors import ModelError, TargetError
from fuseq.placement.plan import Plan
from fuseq.targets.torch_cuda.compiled import Compiled
from fuseq.torch.exporting import export
from fuseq.torch.prepared import prepared_of
from fuseq.torch.preparing import keep_scales, prepare


class CompiledModule(nn.Module):
    """A module whose planned products run in 8 bits; called as the module it was made from.

    Attributes:
        run: The graph, by input shapes.
        names: Names of the graph's inputs.
        signature: Of the float module's ``forward``.
        out_spec: How outputs are nested.
    """

    def __init__(
        self, run: Compiled, signature: inspect.Signature, out_spec: torch.utils._pytree.TreeSpec
    ) -> None:
        super().__init__()
        self.run = run
        self.names = [value.name or "" for value in run.model.graph.inputs]
        self.signature = signature
        self.out_spec = out_spec

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run; arguments and result are those of the float module's ``forward``.

        Raises:
            ModelError: A tensor that the exported graph takes is not among the arguments.
        """
        given = self.signature.bind(*args, **kwargs).arguments
        given = {**given, **given.get("kwargs", {})}
        missing = [name for name in self.names if not isinstance(given.get(name), torch.Tensor)]
        if missing:
            raise ModelError(f"argument {missing[0]!r} is missing; the module takes {self.names}.")
        results = list(self.run(*(given[name] for name in self.names)))
        if self.out_spec.num_leaves != len(results):
            return tuple(results)
        return torch.utils._pytree.tree_unflatten(results, self.out_spec)


def compile(
    module: nn.Module,
    plan: Plan | None = None,
    scales: Mapping[str, Scale] | None = None,
    *,
    example_inputs: Any = None,
    device: torch.device | str | None = None,
) -> CompiledModule:
    """Make a module that runs a plan on the GPU.

    Planned linear layers become FP8 or INT8 GEMMs with bias, activation, residual and the next
    quantization in their epilogue, planned attention one FP8 kernel; weights are stored in 8 bits.
    What is left runs in the plan's float type through torch.compile, all of it in a CUDA graph.

    Args:
        module: A module of :func:`fuseq.torch.prepare`, calibrated, with no plan given here; or a
            float module, with plan, scales and ``example_inputs``.
        plan: For target ``torch:cuda``; None takes that of a prepared module.
        scales: By scale group; None takes those of a prepared module.
        example_inputs: As :func:`fuseq.torch.prepare` takes them.
        device: None: the GPU if it can run the kernels, else the CPU, which gives the same numbers
            up to the order of sums, slowly.

    Raises:
        PlanError: The module is not prepared or not calibrated, or the plan does not fit it.
        TargetError: The plan has formats or operators that PyTorch does not run.
    """
    from fuseq.targets.torch_cuda.target import TorchCuda  # noqa: PLC0415

    if plan is not None:
        if scales is None or example_inputs is None:
            raise TargetError("a plan needs scales and example_inputs beside it.")
        module = prepare(module, example_inputs, plan.format, plan.target, plan=plan)
        keep_scales(prepared_of(module), scales, learned=False, plan=plan)
        prepared_of(module).scales = dict(scales)
    found = prepared_of(module)
    exported = export(module, None)
    if device is None:
        device = "cpu" if TorchCuda().missing() else "cuda"
    program = found.capture.program
    out_spec = program.call_spec.out_spec
    assert out_spec is not None
    run = Compiled(exported.model, torch.device(device))
    return CompiledModule(run, inspect.signature(found.module.forward), out_spec)
