"""The first two words: prepare a module, calibrate it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import nn

from fuseq.calibration.formulas import SMALLEST_SCALE
from fuseq.calibration.scales import Scale
from fuseq.calibration.sources import open_source
from fuseq.calibration.tensor_scales import STORED_AS
from fuseq.errors import OptionError
from fuseq.model import input_specs
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan, check_fits
from fuseq.planning import Report, everything, silent
from fuseq.quantizing import quantize_job
from fuseq.torch.inputs import batch_of, inputs_of
from fuseq.torch.mapping import points_of
from fuseq.torch.prepared import Prepared, attach, open_prepared, prepared_of
from fuseq.torch.scopes import install
from fuseq.torch.state import SCALES, State
from fuseq.torch.weights import kept_weight_name

Module = TypeVar("Module", bound=nn.Module)
Learning = Literal["frozen", "learned"]

_TORCH_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def prepare(
    model: Module,
    example_inputs: Any,
    format: str | None = None,
    target: str | None = None,
    *,
    options: QuantizeOptions | None = None,
    plan: Plan | None = None,
    dynamic_shapes: Any = "batch",
    inplace: bool = False,
) -> Module:
    """Plan a module, and make it ready to be calibrated, trained and exported.

    The module is exported to ONNX and planned as ``fuseq quantize`` would; the result is a module of
    the same class, with the same parameter names, that fake-quantizes as planned once it is
    calibrated. Nothing else about it changes.

    Args:
        model: Float module; it is left as it is unless ``inplace``.
        example_inputs: A tensor, a tuple of positional arguments, or a dict of keyword arguments.
        format: ``int8`` or ``fp8``; None is the one of ``options``.
        target: ``compiler:device``, for example ``tensorrt-rtx:sm89``; None is the one of ``options``.
        options: Everything else that ``fuseq quantize`` takes.
        plan: A plan for this architecture, to be applied instead of one made here.
        dynamic_shapes: ``"batch"``: axis 0 of each input tensor; None: all static; else as
            ``torch.export.export`` takes it.
        inplace: Change ``model`` itself, so that no second copy of its weights is made.

    Raises:
        ModelError: torch.export cannot follow the module; the sentence says where.
        OptionError: Format, target or inputs are not allowed.
        PlanError: ``plan`` was made for another architecture.
    """
    module = model if inplace else copy.deepcopy(model)
    inputs = inputs_of(module, example_inputs, dynamic_shapes)
    chosen = _options(options, format, target)
    captured, job = open_prepared(module, inputs, chosen)
    if plan is not None:
        check_fits(plan, job.model)
    state = State(
        module, {}, {}, _TORCH_TYPES[job.precision], SMALLEST_SCALE[STORED_AS[job.precision]]
    )
    complete = plan or everything(job)
    points = points_of(complete, job.model, captured)
    install(module, points, state)
    made = Prepared(module, complete, {}, job, captured, points, state, inputs)
    made.given_plan, made.notes = plan is not None, job.notes
    attach(made)
    return module


def calibrate(
    prepared: Module,
    loader: Iterable[Any],
    *,
    scales: Learning = "frozen",
    report: Report = silent,
) -> Module:
    """Find scales on data, let the target's compiler judge the plan, and switch fake quantization on.

    Ranges are measured on the exported float graph, in one pass, exactly as ``fuseq quantize`` does;
    parameters, buffers and BatchNorm statistics are not touched.

    Args:
        prepared: A module of :func:`prepare`, also inside DistributedDataParallel or torch.compile.
        loader: Batches: tensors, tuples whose first items are the inputs, or dicts by input name.
            Labels behind or beside them are ignored.
        scales: ``frozen``: activation ranges stay as found, weight ranges follow the weights.
            ``learned``: activation and weight scales become the parameter ``fuseq_scales``, trained
            with the rest (LSQ).
        report: Called with (stage, done, total).

    Returns:
        ``prepared``.

    Raises:
        CalibrationError: No data, or data that does not fit the inputs.
        PlanError: The module is not prepared.
    """
    if scales not in ("frozen", "learned"):
        raise OptionError(f"scales={scales!r} is unknown; choose frozen or learned.")
    found = prepared_of(prepared)
    job = found.float_job()
    names = [spec.name for spec in input_specs(job.model)]
    source = open_source(
        _Loader(loader, names), job.model, limit=job.options.limit, seed=job.options.seed
    )
    result = quantize_job(job, source, found.plan if found.given_plan else None, report)
    found.job, found.notes = result.job, result.notes
    found.scales = dict(result.scales)
    keep_scales(found, result.scales, learned=scales == "learned", plan=result.plan)
    return prepared


def keep_scales(
    prepared: Prepared, scales: Mapping[str, Scale], *, learned: bool, plan: Plan
) -> None:
    """Put scales on the module as the parameter ``fuseq_scales``, and switch fake quantization on.

    Args:
        prepared: The module.
        scales: Scale by group of ``plan``.
        learned: Weights' scales are kept too, and the parameter requires a gradient.
        plan: The plan that the module runs from now on.
    """
    prepared.use_plan(plan)
    kept = _kept(prepared, scales, plan, learned)
    places: dict[str, tuple[int, int]] = {}
    start = 0
    for name, part in kept.items():
        places[name] = (start, part.size)
        start += part.size
    flat = np.concatenate([part.reshape(-1) for part in kept.values()] or [np.zeros(0)])
    zero_points = {
        group: int(scale.zero_point)
        for group, scale in scales.items()
        if scale.zero_point is not None and scale.zero_point.ndim == 0
    }
    values = torch.tensor(flat, dtype=torch.float32)
    keep_values(prepared, places, values, zero_points, learned=learned)


def keep_values(
    prepared: Prepared,
    places: Mapping[str, tuple[int, int]],
    values: torch.Tensor,
    zero_points: Mapping[str, int],
    *,
    learned: bool,
) -> None:
    """Register ``values`` as the parameter ``fuseq_scales``, and switch fake quantization on.

    Args:
        prepared: The module, with points of its plan.
        places: Start and length in ``values`` by scale group.
        values: float32, one axis.
        zero_points: By scale group, of asymmetric formats.
        learned: The parameter requires a gradient.
    """
    state, module = prepared.state, prepared.module
    state.places, state.zero_points = dict(places), dict(zero_points)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    parameter = nn.Parameter(values.to(device, torch.float32).clone(), requires_grad=learned)
    module.register_parameter(SCALES, parameter)
    if not prepared.takes_float_state:
        module.register_load_state_dict_pre_hook(_keep_own_scales)  # type: ignore[no-untyped-call]
        prepared.takes_float_state = True
    state.fake_quantize = True


def _keep_own_scales(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a float module's state be loaded: scales that it lacks stay as they are."""
    own = module._parameters.get(SCALES)
    if own is not None:
        state_dict.setdefault(prefix + SCALES, own.detach())


def _kept(
    prepared: Prepared, scales: Mapping[str, Scale], plan: Plan, learned: bool
) -> dict[str, np.ndarray]:
    """Values that the parameter holds, by name of their place: activations, and learned weights."""
    kept = {
        entry.group: scales[entry.group].scale
        for entry in plan.tensors
        if entry.kind == "activation"
    }
    weights = [call.weight for call in prepared.points.calls.values() if call.weight is not None]
    for point in weights if learned else []:
        scale = scales[point.group].scale
        if not point.per_channel or len(point.members) == 1:
            name = kept_weight_name(point.group, point.source)
            kept[name if point.per_channel else point.group] = scale
            continue
        start = 0
        for member in point.members:
            channels = prepared.module.get_parameter(member.path).shape[member.axis]
            kept[kept_weight_name(point.group, member)] = scale[start : start + channels]
            start += channels
    return kept


@dataclasses.dataclass
class _Loader:
    """A loader's batches as arrays by input name; as often as the loader can be read."""

    loader: Iterable[Any]
    names: list[str]

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for number, batch in enumerate(self.loader):
            found = batch_of(batch, self.names, f"batch {number + 1} of the loader")
            yield {name: _array(value) for name, value in found.items()}


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    if value.dtype == torch.bfloat16:
        value = value.to(torch.float32)
    array: np.ndarray = value.detach().cpu().numpy()
    return array


def _options(
    options: QuantizeOptions | None, format: str | None, target: str | None
) -> QuantizeOptions:
    options = options or QuantizeOptions()
    return dataclasses.replace(
        options, format=format or options.format, target=target or options.target
    )
