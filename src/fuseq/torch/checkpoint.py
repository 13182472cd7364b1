"""Checkpoints of prepared modules: safetensors and JSON, which cannot execute anything.

A folder holds ``model.safetensors`` (the float module's own state, as its library would write it),
``fuseq_plan.json`` (the plan) and ``fuseq.safetensors`` (kept scales; options and switches as JSON in
its header).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from fuseq.errors import ModelError, OptionError, PlanError
from fuseq.model import whole_file
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan
from fuseq.torch.prepared import Prepared, prepared_of
from fuseq.torch.preparing import keep_values, prepare
from fuseq.torch.state import SCALES

Module = TypeVar("Module", bound=nn.Module)

CHECKPOINT_VERSION = 1
_WEIGHTS, _PLAN, _STATE = "model.safetensors", "fuseq_plan.json", "fuseq.safetensors"
_HEADER = "fuseq_checkpoint"
_LARGEST = 3.4e38
"""Of float32, as which ranges are found."""


def save(prepared: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a prepared module, calibrated or trained, into ``folder``.

    A module with a ``config`` (Hugging Face) also writes its ``config.json``, so that
    ``from_pretrained(folder)`` reads the float model.

    Raises:
        PlanError: The module is not prepared or not calibrated.
        ModelError: The folder cannot be written.
    """
    from safetensors.torch import save_file, save_model  # noqa: PLC0415

    found = prepared_of(prepared)
    if not hasattr(found.module, SCALES):
        raise PlanError(
            f"{type(found.module).__name__} has no scales to save; call fuseq.torch.calibrate first."
        )
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{place}: cannot be made ({error.strerror}); choose another.") from error
    found.float_job()  # names of the plan are those of an export with these weights
    kept = found.module.get_parameter(SCALES)
    with _without_scales(found.module), whole_file(place / _WEIGHTS) as beside:
        save_model(found.module, str(beside))
    found.plan.save(place / _PLAN)
    scales = {"scales": kept.detach().to("cpu", torch.float32).contiguous()}
    with whole_file(place / _STATE) as beside:
        save_file(scales, str(beside), metadata={_HEADER: json.dumps(_header(found))})
    config = getattr(found.module, "config", None)
    write_config = getattr(config, "save_pretrained", None)
    if callable(write_config):
        write_config(str(place))


def load(model: Module, folder: str | os.PathLike[str], example_inputs: Any) -> Module:
    """Load a folder of :func:`save` into a float module of the same architecture.

    Args:
        model: Takes the weights, in its own dtypes and on its own devices, and becomes the prepared
            module.
        folder: Where :func:`save` wrote.
        example_inputs: As for :func:`fuseq.torch.prepare`.

    Raises:
        ModelError: A file is missing, is no safetensors, or is damaged.
        PlanError: Weights or plan belong to another architecture.
    """
    place = Path(folder)
    plan = Plan.load(place / _PLAN)
    header, kept = _read_state(place / _STATE)
    places = _places(header, kept, place / _STATE)
    missing = [
        entry.group
        for entry in plan.tensors
        if entry.kind == "activation" and entry.group not in places
    ]
    if missing:
        raise ModelError(
            f"{place / _STATE}: no scale for {missing[0]!r} of {_PLAN}; the files were not written "
            "together."
        )
    options = _options(header, place / _STATE)
    _load_weights(model, place / _WEIGHTS)
    prepare(model, example_inputs, options=options, plan=plan, inplace=True)
    found = prepared_of(model)
    found.given_plan = bool(header["given_plan"])
    found.job = dataclasses.replace(found.job, magnitudes=header["magnitudes"])
    keep_values(found, places, kept, header["zero_points"], learned=bool(header["learned"]))
    found.state.batch_norm_frozen = bool(header["batch_norm_frozen"])
    return model


def _header(found: Prepared) -> dict[str, Any]:
    state = found.state
    return {
        "version": CHECKPOINT_VERSION,
        "options": dataclasses.asdict(found.job.options),
        "places": state.places,
        "zero_points": dict(state.zero_points),
        "learned": found.learned,
        "given_plan": found.given_plan,
        "batch_norm_frozen": state.batch_norm_frozen,
        "magnitudes": dict(found.job.magnitudes),
    }


def _read_state(file: Path) -> tuple[dict[str, Any], torch.Tensor]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    if not file.is_file():
        raise ModelError(f"{file}: no such file; give a folder of fuseq.torch.save.")
    try:
        with safe_open(str(file), framework="pt") as opened:
            text = (opened.metadata() or {}).get(_HEADER)
            kept = opened.get_tensor("scales")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: not safetensors ({error}); save the module again.") from error
    try:
        header = json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: its header is damaged ({error}).") from error
    if not isinstance(header, dict) or header.get("version") != CHECKPOINT_VERSION:
        raise ModelError(f"{file}: no checkpoint of version {CHECKPOINT_VERSION}; save it again.")
    needed = {"options": dict, "places": dict, "zero_points": dict, "magnitudes": dict}
    for key, kind in needed.items():
        if not isinstance(header.get(key), kind):
            raise ModelError(f"{file}: its header has no usable {key}; save the module again.")
    flags = {key: bool(header.get(key)) for key in ("learned", "given_plan", "batch_norm_frozen")}
    return {**header, **flags}, kept


def _places(header: dict[str, Any], kept: torch.Tensor, file: Path) -> dict[str, tuple[int, int]]:
    """Start and length of each group's scales; all numbers of the header are of their kind."""
    places = {}
    for name, place in header["places"].items():
        fits = isinstance(place, list) and [type(number) for number in place] == [int, int]
        if not fits or min(place) < 0 or kept.ndim != 1 or sum(place) > kept.numel():
            raise ModelError(
                f"{file}: the scales of {name!r} do not fit their list; save the module again."
            )
        places[name] = (place[0], place[1])
    if not kept.is_floating_point() or not torch.isfinite(kept).all():
        raise ModelError(f"{file}: a scale is no finite number; save the module again.")
    for key, kinds in (("zero_points", (int,)), ("magnitudes", (int, float))):
        for name, number in header[key].items():
            if type(number) not in kinds or not abs(number) <= _LARGEST:
                raise ModelError(
                    f"{file}: {key} of {name!r} is no usable number; save the module again."
                )
    return places


def _options(header: dict[str, Any], file: Path) -> QuantizeOptions:
    given = dict(header["options"])
    try:
        for key in ("exclude", "include"):
            given[key] = tuple(given.get(key) or ())
        shapes = dict(given.get("shapes") or {})
        given["shapes"] = {name: tuple(shape) for name, shape in shapes.items()}
        return QuantizeOptions(**given)
    except (TypeError, ValueError, OptionError) as error:
        raise ModelError(f"{file}: its options cannot be used ({error}).") from error


def _load_weights(model: nn.Module, file: Path) -> None:
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import load_model  # noqa: PLC0415

    if not file.is_file():
        raise ModelError(f"{file}: no such file; give a folder of fuseq.torch.save.")
    try:
        load_model(model, str(file))
    except RuntimeError as error:
        first = str(error).strip().splitlines()
        raise PlanError(
            f"{file}: weights of another architecture than {type(model).__name__} "
            f"({' '.join(first)[:200]}); make the model that was saved."
        ) from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: not safetensors ({error}); save the module again.") from error


@contextlib.contextmanager
def _without_scales(module: nn.Module) -> Iterator[None]:
    """The module without its scales for the block, so that its own state is written alone."""
    kept = module._parameters.pop(SCALES)
    try:
        yield
    finally:
        module._parameters[SCALES] = kept
