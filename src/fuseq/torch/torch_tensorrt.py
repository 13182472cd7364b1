"""A prepared module as an exported program that Torch-TensorRT's dynamo converters accept.

Torch-TensorRT turns ``torch.ops.tensorrt.quantize_op`` into an IQuantizeLayer and an IDequantizeLayer
(its ``dynamo/conversion/aten_ops_converters.py``). The operator is ModelOpt's; where ModelOpt is not
installed, it is defined here with the same schema, so that programs can be made and looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fuseq.errors import OptionError, PlanError
from fuseq.formats import FP8, INT8, Format, format_named
from fuseq.torch.inputs import inputs_of
from fuseq.torch.prepared import prepared_of
from fuseq.torch.rounding import fake_quantize
from fuseq.torch.state import SCALES, State

_SCHEMA = (
    "(Tensor input, Tensor amax, int num_bits, int exponent_bits, bool unsigned, "
    "bool narrow_range) -> Tensor"
)
_NAME = "tensorrt::quantize_op"


def export_for_torch_tensorrt(
    prepared: nn.Module, example_inputs: Any = None, *, dynamic_shapes: Any = "batch"
) -> torch.export.ExportedProgram:
    """Export a calibrated module with quantize operators where the plan puts pairs.

    Compile the result with ``torch_tensorrt.dynamo.compile(program, inputs=[...])``.

    Args:
        prepared: A calibrated module; it runs in eval mode, and stays as it is.
        example_inputs: As for :func:`fuseq.torch.prepare`; None takes those of ``prepare``.
        dynamic_shapes: As for :func:`fuseq.torch.prepare`; only with ``example_inputs``.

    Raises:
        PlanError: The module is not prepared or not calibrated.
        OptionError: The plan has asymmetric formats, which TensorRT has not.
    """
    found = prepared_of(prepared)
    if not hasattr(found.module, SCALES):
        raise PlanError(
            f"{type(found.module).__name__} has no scales; call fuseq.torch.calibrate first."
        )
    formats = {format_named(t.format) for t in found.plan.tensors if t.kind == "activation"}
    if any(not fmt.symmetric for fmt in formats):
        raise OptionError(
            f"target {found.plan.target} quantizes with zero points, which TensorRT has not; prepare "
            "for a tensorrt target."
        )
    _define_operator()
    inputs = found.inputs
    if example_inputs is not None:
        inputs = inputs_of(found.module, example_inputs, dynamic_shapes)
    with _as_operators(found.module, found.state):
        return torch.export.export(
            found.module, inputs.args, dict(inputs.kwargs),
            dynamic_shapes=inputs.dynamic_shapes, strict=False,
        )  # fmt: skip


@contextlib.contextmanager
def _as_operators(module: nn.Module, state: State) -> Iterator[None]:
    modes = {part: part.training for part in module.modules()}
    module.eval()
    state.operator, before = quantize_operator, state.operator
    try:
        yield
    finally:
        state.operator = before
        for part, was_training in modes.items():
            part.training = was_training


def quantize_operator(
    x: torch.Tensor, scale: torch.Tensor, fmt: Format, axis: int | None
) -> torch.Tensor:
    """``tensorrt::quantize_op``: amax has one element, or one along ``axis`` and 1 elsewhere."""
    shape = [1] * x.ndim
    if axis is not None:
        shape[axis] = -1
    amax = (scale * fmt.qmax).reshape(shape if axis is not None else ())
    exponent_bits = 4 if fmt == FP8 else 0  # a copied module has copied formats
    result: torch.Tensor = torch.ops.tensorrt.quantize_op(
        x, amax, fmt.bits, exponent_bits, False, False
    )
    return result


def _define_operator() -> None:
    """ModelOpt's operator where it is installed; else one of the same schema and meaning."""
    if hasattr(torch.ops.tensorrt, "quantize_op"):
        return
    try:
        import modelopt.torch.quantization  # noqa: F401, PLC0415
    except ImportError:
        torch.library.define(_NAME, _SCHEMA)
        torch.library.impl(_NAME, "CompositeExplicitAutograd")(_run)
        torch.library.register_fake(_NAME)(lambda x, *_: torch.empty_like(x))


def _run(
    x: torch.Tensor,
    amax: torch.Tensor,
    num_bits: int,
    exponent_bits: int,
    unsigned: bool,
    narrow_range: bool,
) -> torch.Tensor:
    fmt = FP8 if exponent_bits else INT8
    if num_bits != 8 or unsigned or narrow_range:
        raise OptionError("tensorrt::quantize_op is known here for 8 bits, signed, full range.")
    axis = next((each for each, size in enumerate(amax.shape) if size > 1), None)
    scale = amax / fmt.qmax
    return fake_quantize(x, scale.reshape(-1) if axis is not None else scale.reshape(()), fmt, axis)
