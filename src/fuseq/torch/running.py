"""Run one call of a torch function with its points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuseq.torch.arguments import Arguments
from fuseq.torch.attention import attention
from fuseq.torch.points import ActivationPoint, CallPlan, WeightPoint
from fuseq.torch.state import State
from fuseq.torch.weights import (
    fold_factor,
    folded_bias,
    quantized_weight,
    scaled,
    uses_running_statistics,
)

_WEIGHT_ROLES = {"linear": "weight", "matmul": "other", "addmm": "mat2", "baddbmm": "mat2"}


def run_call(
    state: State, plan: CallPlan, kind: str, func: Callable[..., Any], arguments: Arguments
) -> Any:
    """Call ``func`` with quantized arguments.

    1. A BatchNorm that is wholly folded into the layer before it gives back its input; one that is
       frozen runs on its running statistics.
    2. Attention runs in its parts.
    3. A layer with a weight; where a BatchNorm behind it is folded, see :func:`_run_folded`.
    4. Anything else with its arguments quantized.
    """
    if kind == "batch_norm":
        return _run_batch_norm(state, plan, func, arguments)
    if kind == "scaled_dot_product_attention":
        quantizers = {role: _quantizer(state, point) for role, point in plan.activations.items()}
        return attention(*arguments.args, **arguments.kwargs, quantizers=quantizers)
    for role, point in plan.activations.items():
        arguments.set(role, quantized(state, point, arguments.get(role)))
    if plan.weight is not None and state.fake_quantize:
        return _run_weighted(state, plan.weight, kind, func, arguments)
    return func(*arguments.args, **arguments.kwargs)


def quantized(state: State, point: ActivationPoint, x: torch.Tensor) -> torch.Tensor:
    """Fake-quantize one activation; follow its range first where the state observes."""
    if state.observe and state.root.training:
        state.follow(point.group, x / point.factor if point.factor != 1.0 else x, point.format)
    if not state.fake_quantize:
        return x
    scale = state.scale(point.group)
    if point.factor != 1.0:
        scale = scale * point.factor
    return state.apply(x, scale, point.format, None, state.zero_point(point.group, scale))


def _quantizer(state: State, point: ActivationPoint) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: quantized(state, point, x)


def _run_batch_norm(
    state: State, plan: CallPlan, func: Callable[..., Any], arguments: Arguments
) -> Any:
    fold = plan.folded
    if fold is not None and state.fake_quantize and uses_running_statistics(state, fold):
        return arguments.get("input")
    if state.batch_norm_frozen:
        arguments.set("training", False)
    return func(*arguments.args, **arguments.kwargs)


def _run_weighted(
    state: State, point: WeightPoint, kind: str, func: Callable[..., Any], arguments: Arguments
) -> Any:
    role = _WEIGHT_ROLES.get(kind, "weight")
    weight = arguments.get(role)
    if point.source.fold is not None:
        return _run_folded(state, point, func, arguments)
    dtype = weight.dtype
    arguments.set(role, quantized_weight(state, point, weight.to(torch.float32)).to(dtype))
    return func(*arguments.args, **arguments.kwargs)


def _run_folded(
    state: State, point: WeightPoint, func: Callable[..., Any], arguments: Arguments
) -> Any:
    """A layer with the BatchNorm behind it folded in, so that what is rounded is what is exported.

    1. On running statistics: folded weight and bias; the BatchNorm then does nothing.
    2. On the batch's statistics: the weight is scaled by the running factor, rounded, and the result
       is scaled back before the bias, so that BatchNorm sees what it would in float (Krishnamoorthi
       2018, section 3.2.2, https://arxiv.org/abs/1806.08342). A factor of 0 is taken as 1 there:
       BatchNorm multiplies by it afterwards.
    """
    fold = point.source.fold
    assert fold is not None
    weight, bias = arguments.get("weight"), arguments.get("bias")
    factor = fold_factor(state, fold)
    dtype = weight.dtype
    if uses_running_statistics(state, fold):
        rounded = quantized_weight(state, point, scaled(weight, factor, point.source.axis))
        arguments.set("weight", rounded.to(dtype))
        arguments.set("bias", folded_bias(state, fold, factor, bias).to(dtype))
        return func(*arguments.args, **arguments.kwargs)
    safe = torch.where(factor == 0, torch.ones_like(factor), factor)
    rounded = quantized_weight(state, point, scaled(weight, safe, point.source.axis))
    arguments.set("weight", rounded.to(dtype))
    arguments.set("bias", None)
    out = func(*arguments.args, **arguments.kwargs)
    shape = [1] * out.ndim
    shape[1 if out.ndim > 2 else -1] = -1
    out = out / safe.to(out.dtype).reshape(shape)
    return out if bias is None else out + bias.to(out.dtype).reshape(shape)
