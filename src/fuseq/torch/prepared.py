"""What fuseq knows about a prepared module, and how to find it from the module."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from fuseq.calibration.scales import Scale
from fuseq.errors import PlanError
from fuseq.model import input_specs
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan, check_fits, fingerprint
from fuseq.planning import Job, open_job
from fuseq.torch.capture import Capture, capture
from fuseq.torch.carrying import Carried, with_all_biases
from fuseq.torch.inputs import Inputs
from fuseq.torch.mapping import points_of
from fuseq.torch.points import Points
from fuseq.torch.scopes import install, uninstall
from fuseq.torch.state import SCALES, State

_ATTRIBUTE = "_fuseq_prepared"


@dataclasses.dataclass(eq=False)
class Prepared:
    """A module with its plan. The module stays the user's own class and runs on its own.

    Attributes:
        module: The prepared module: parameters, buffers and their names are the float model's.
        plan: What is quantized and why, in names of ``job.model``.
        scales: Scale by group as calibration found it; empty before. What training made of the
            kept ones is in :attr:`state`.
        job: Canonical float ONNX graph of the module (``job.model``), target and options.
        capture: The exported program, and which call of which module each ONNX node came from.
        points: Where the plan acts on the module: arguments of its calls.
        state: What the fake quantizers share.
        inputs: Example inputs.
        given_plan: The plan was given, so that calibration does not judge it.
        takes_float_state: A float module's ``state_dict`` loads strictly.
        notes: What the user should know.
    """

    module: nn.Module
    plan: Plan
    scales: Mapping[str, Scale]
    job: Job
    capture: Capture
    points: Points
    state: State
    inputs: Inputs
    given_plan: bool = False
    takes_float_state: bool = False
    notes: tuple[str, ...] = ()

    @property
    def learned(self) -> bool:
        """Scales are trained with the module's other parameters."""
        kept = self.module._parameters.get(SCALES)
        return kept is not None and kept.requires_grad

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        """Copy what belongs to the module; plan, graph and exported program are shared."""
        copied = dataclasses.replace(self)
        memo[id(self)] = copied
        copied.module = copy.deepcopy(self.module, memo)
        copied.state = copy.deepcopy(self.state, memo)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled module still fake-quantizes; graph and plan are in what ``save`` writes."""
        return (Unpickled, ())

    def use_plan(self, plan: Plan) -> None:
        """Take ``plan`` and put its points on the module.

        Raises:
            PlanError: The plan was made for another architecture.
        """
        check_fits(plan, self.job.model)
        self.plan = plan
        self.points = points_of(plan, self.job.model, self.capture)
        install(self.module, self.points, self.state)

    def refresh(self, inputs: Inputs | None = None) -> None:
        """Export the float graph again, with the weights as they are now, and take the plan over.

        The names of an export depend on its weights (the exporter leaves out a bias of zeros, and
        numbers what is left) and on its dynamic axes; the plan follows them.

        Args:
            inputs: Other example inputs or dynamic axes than before.

        Raises:
            ModelError: torch.export refused the module.
            PlanError: A planned tensor or reader is not in the new graph.
        """
        inputs = inputs or self.inputs
        uninstall(self.module)
        try:
            captured, fresh = open_prepared(self.module, inputs, self.job.options)
        finally:
            install(self.module, self.points, self.state)
        plan, magnitudes = self.plan, self.job.magnitudes
        if fingerprint(fresh.model) != fingerprint(self.job.model):
            names = Carried(self.job.model, self.capture, fresh.model, captured)
            plan = names.plan(plan)
            if fresh.target.rules(fresh.options.format).int32_bias:
                plan = with_all_biases(plan, fresh.model)
            magnitudes = names.by_value(magnitudes)
        self.inputs, self.capture = inputs, captured
        self.job = dataclasses.replace(fresh, magnitudes=magnitudes)
        if plan is not self.plan:
            self.use_plan(plan)

    def float_job(self) -> Job:
        """The job with the module's weights as they are now; exported again if they changed."""
        if not self.capture.is_current(self.module):
            self.refresh()
        return self.job


class Unpickled:
    """Stands in a module that was pickled for what cannot be: exported program and graph."""


def prepared_of(module: nn.Module) -> Prepared:
    """Return what :func:`fuseq.torch.prepare` attached to ``module``.

    Wrappers of torch are looked through: DistributedDataParallel, DataParallel, torch.compile.

    Raises:
        PlanError: The module is not prepared.
    """
    inner = module
    while _ATTRIBUTE not in vars(inner):
        wrapped = getattr(inner, "_orig_mod", getattr(inner, "module", None))
        if not isinstance(wrapped, nn.Module):
            raise PlanError(
                f"{type(module).__name__} is not prepared; call fuseq.torch.prepare(model, inputs) "
                "and give its result."
            )
        inner = wrapped
    found = vars(inner)[_ATTRIBUTE]
    if not isinstance(found, Prepared):
        raise PlanError(
            f"{type(inner).__name__} was pickled, which does not keep its graph; use "
            "fuseq.torch.save and fuseq.torch.load."
        )
    return found


def open_prepared(
    module: nn.Module, inputs: Inputs, options: QuantizeOptions
) -> tuple[Capture, Job]:
    """Export a float module and open the job of quantizing it.

    Raises:
        FuseqError: The module cannot be exported, or a target, format or shape is not allowed.
    """
    captured = capture(module, inputs)
    shapes = {**_example_shapes(captured.model, inputs.named(module), options), **options.shapes}
    return captured, open_job(captured.model, dataclasses.replace(options, shapes=shapes))


def _example_shapes(
    model: ir.Model, named: Mapping[str, Any], options: QuantizeOptions
) -> dict[str, tuple[int, ...]]:
    """Shapes to compile for where more than the batch is dynamic: those of the example inputs."""
    found = {}
    for spec in input_specs(model):
        example = named.get(spec.name)
        if spec.shape is None or not isinstance(example, torch.Tensor):
            continue
        if any(isinstance(dim, str) for dim in spec.shape[1:]):
            batch = spec.shape[0] if isinstance(spec.shape[0], int) else options.batch
            found[spec.name] = (batch, *example.shape[1:])
    return found


def attach(prepared: Prepared) -> None:
    """Let :func:`prepared_of` find ``prepared`` from its module; copies of the module copy it."""
    object.__setattr__(prepared.module, _ATTRIBUTE, prepared)
