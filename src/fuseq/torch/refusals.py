"""Why a module could not be exported: where in the user's code, the reason, and what to do.

1. It does not run on the example inputs at all: a wrong shape or type, a missing argument.
2. It runs, but an axis that should be dynamic has one size by its code.
3. It runs, but torch.export cannot follow it: control flow on values.
4. torch.onnx has no translation for one of its operators.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
from torch import nn

from fuseq.torch.inputs import Inputs

_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parent)
"""Frames of these folders are not the user's."""

_ONE_SIZE = ("constraints violated", "constraint violation", "specialized", "marked dynamic")
"""What torch.export says where an axis has one size, in lower case."""


def export_refusal(module: nn.Module, inputs: Inputs, error: Exception) -> str:
    """The sentence for what torch.export refused; runs the module once on its inputs to tell why.

    Args:
        module: In eval mode.
        inputs: What it was exported with.
        error: What torch.export raised.
    """
    name = type(module).__name__
    own = _error_of_a_run(module, inputs)
    if own is not None:  # case 1
        return (
            f"{name} does not run on the example inputs{_place(own)} ({_reason(own)}); found "
            f"{_described(inputs)}. Give inputs that its forward takes."
        )
    if any(words in str(error).lower() for words in _ONE_SIZE):  # case 2
        return (
            f"an axis of {name} cannot be dynamic{_place(error)} ({_reason(error)}). Give "
            "dynamic_shapes=None for static shapes, or name the axes that vary."
        )
    return (  # case 3
        f"torch.export cannot follow {name}{_place(error)} ({_reason(error)}). Replace a branch on "
        "tensor values by torch.where or torch.cond, or prepare only submodules that have none, for "
        "example model.encoder = fuseq.torch.prepare(model.encoder, inputs)."
    )


def onnx_refusal(module: nn.Module, error: Exception) -> str:
    """The sentence for what torch.onnx.export refused."""
    cause = error
    while isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    return (
        f"torch.onnx cannot write {type(module).__name__} ({_reason(cause)}). Replace that operator, or "
        "prepare only submodules without it, for example "
        "model.encoder = fuseq.torch.prepare(model.encoder, inputs)."
    )


def _error_of_a_run(module: nn.Module, inputs: Inputs) -> Exception | None:
    try:
        with torch.no_grad():
            module(*inputs.args, **inputs.kwargs)
    except Exception as error:  # whatever the user's own code raises
        return error
    return None


def _described(inputs: Inputs) -> str:
    found = [*enumerate(inputs.args), *inputs.kwargs.items()]
    return ", ".join(f"{name}: {_one(value)}" for name, value in found)


def _one(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _place(error: Exception) -> str:
    """The innermost frame of the user's own code, among all causes."""
    where = ""
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        own = [frame for frame in frames if not _is_library(frame.filename)]
        if own:
            where = f" at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}: `{own[-1].line}`"
        cause = cause.__cause__
    return where


def _is_library(filename: str) -> bool:
    file = Path(filename)
    return filename.startswith("<") or any(file.is_relative_to(folder) for folder in _LIBRARIES)
