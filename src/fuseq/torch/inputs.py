"""Example inputs of a module: how they are given, which axes are dynamic, and batches of a loader."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fuseq.errors import CalibrationError, OptionError


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Example inputs as ``forward`` takes them.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        dynamic_shapes: As ``torch.export.export`` takes it; None makes every axis static.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic_shapes: Any

    def named(self, module: nn.Module) -> dict[str, Any]:
        """Arguments by the parameter names of ``module.forward``."""
        names = list(inspect.signature(module.forward).parameters)
        positional = dict(zip(names, self.args, strict=False))
        return {**positional, **self.kwargs}


def inputs_of(module: nn.Module, given: Any, dynamic_shapes: Any = "batch") -> Inputs:
    """Sort example inputs into arguments, and make the batch axis dynamic.

    Args:
        module: Whose ``forward`` takes them.
        given: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        dynamic_shapes: ``"batch"``: axis 0 of every tensor; None: static; else as
            ``torch.export.export`` takes it.

    Raises:
        OptionError: No tensor is among the inputs, or an axis that should be dynamic has size 0.
    """
    args, kwargs = _sorted(given)
    if not any(isinstance(leaf, torch.Tensor) for leaf in _leaves((args, kwargs))):
        raise OptionError(
            f"example inputs of {type(module).__name__} hold no tensor (found "
            f"{type(given).__name__}); give a tensor, a tuple of arguments or a dict by name."
        )
    if dynamic_shapes != "batch":
        return Inputs(args, kwargs, dynamic_shapes)
    args, kwargs = torch.utils._pytree.tree_map(_two_samples, (args, kwargs))
    shapes = torch.utils._pytree.tree_map(_batch_axis, (args, kwargs))
    names = list(inspect.signature(module.forward).parameters)
    by_name = {**dict(zip(names, shapes[0], strict=False)), **shapes[1]}
    return Inputs(args, kwargs, by_name if not _has_star(module) else _by_structure(shapes))


def batch_of(batch: Any, names: list[str], what: str) -> dict[str, Any]:
    """Pick a module's inputs out of a loader's batch.

    1. A tensor: the first input. 2. A dict: by name; other keys (labels) are left out.
    3. A tuple or list: as many leading tensors as there are inputs; labels behind are left out.

    Raises:
        CalibrationError: An input is missing.
    """
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    if isinstance(batch, Mapping):
        found = {name: batch[name] for name in names if name in batch}
    elif isinstance(batch, list | tuple):
        found = dict(zip(names, batch, strict=False))
    else:
        raise CalibrationError(
            f"{what} is a {type(batch).__name__}; give a tensor, a tuple or a dict by input name."
        )
    missing = [name for name in names if name not in found]
    if missing:
        raise CalibrationError(
            f"{what} has no {', '.join(map(repr, missing))}; the module's inputs are {names}."
        )
    return found


def _sorted(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, list | tuple):
        return tuple(given), {}
    return (given,), {}


def _leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


def _two_samples(leaf: Any) -> Any:
    """torch.export takes an axis of size 1 for a constant: a batch of one becomes two."""
    if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == 1:
        return leaf.expand(2, *leaf.shape[1:]).contiguous()
    return leaf


def _batch_axis(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.ndim:
        return {0: torch.export.Dim.DYNAMIC}
    return None


def _has_star(module: nn.Module) -> bool:
    kinds = [part.kind for part in inspect.signature(module.forward).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds


def _by_structure(shapes: tuple[Any, Any]) -> Any:
    return {"args": tuple(shapes[0]), **shapes[1]}
