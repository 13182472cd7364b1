"""Weights as the exported graph stores them: BatchNorm folded in, then rounded to the format."""

from __future__ import annotations

import dataclasses
from typing import cast

import torch
from torch import nn

from fuseq.torch.points import BatchNormFold, WeightPoint, WeightSource
from fuseq.torch.rounding import weight_scale
from fuseq.torch.state import State


def batch_norm_of(state: State, fold: BatchNormFold) -> nn.BatchNorm2d:
    """The BatchNorm module of a fold, of any number of dimensions."""
    norm = state.root.get_submodule(fold.path)
    return cast(nn.BatchNorm2d, norm)


def uses_running_statistics(state: State, fold: BatchNormFold) -> bool:
    """The BatchNorm acts as in eval mode, so that it is wholly inside the layer before it."""
    return state.batch_norm_frozen or not batch_norm_of(state, fold).training


def fold_factor(state: State, fold: BatchNormFold) -> torch.Tensor:
    """``gamma / sqrt(var + eps)`` per channel, in the type in which the export folds."""
    norm = batch_norm_of(state, fold)
    variance, gamma = norm.running_var, norm.weight
    assert variance is not None
    if fold.in_float64:
        variance = variance.to(torch.float64)
    root = torch.sqrt(variance + fold.eps)
    return (torch.ones_like(root) if gamma is None else gamma.to(root.dtype)) / root


def folded_bias(
    state: State, fold: BatchNormFold, factor: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """``(bias - mean) * factor + beta``, float32."""
    norm = batch_norm_of(state, fold)
    mean, beta = norm.running_mean, norm.bias
    assert mean is not None
    start = torch.zeros_like(factor) if bias is None else bias.to(factor.dtype)
    shifted = (start - mean.to(factor.dtype)) * factor
    if beta is not None:
        shifted = shifted + beta.to(factor.dtype)
    return shifted.to(torch.float32)


def scaled(weight: torch.Tensor, factor: torch.Tensor, axis: int) -> torch.Tensor:
    """``weight * factor`` along ``axis``, float32."""
    shape = [1] * weight.ndim
    shape[axis] = -1
    return (weight.to(factor.dtype) * factor.reshape(shape)).to(torch.float32)


def quantized_weight(state: State, point: WeightPoint, weight: torch.Tensor) -> torch.Tensor:
    """Fake-quantize a weight that is folded already.

    Args:
        state: Shared state.
        point: Which scales; kept ones (learned) where the state has some, else from the largest
            magnitudes of the weights as they are now.
        weight: Folded weight; its output channels lie on ``point.source.axis``.
    """
    if point.source.factor is not None:
        plain = dataclasses.replace(point, source=dataclasses.replace(point.source, factor=None))
        factor = weight.new_tensor(point.source.factor)
        rounded = quantized_weight(state, plain, scaled(weight, factor, point.source.axis))
        return scaled(rounded, 1.0 / factor, point.source.axis)
    axis = point.source.axis if point.per_channel else None
    kept = _kept_name(state, point)
    if kept is not None:
        shape = (weight.shape[axis],) if axis is not None else ()
        return state.apply(weight, state.scale(kept, shape), point.format, axis)
    with torch.no_grad():
        amax = _amax(weight, axis)
        if axis is None:
            for member in point.members:
                if member.path and member.path != point.source.path:
                    amax = torch.maximum(amax, _amax(weight_of(state, member), None))
        scale = weight_scale(amax, point.format, state.smallest, state.stored_as)
    return state.apply(weight, scale, point.format, axis)


def weight_of(state: State, source: WeightSource) -> torch.Tensor:
    """The parameter with its BatchNorm folded in; float32."""
    weight: torch.Tensor = state.root.get_parameter(source.path)
    if source.factor is not None:
        weight = scaled(weight, weight.new_tensor(source.factor), source.axis)
    if source.fold is None:
        return weight.to(torch.float32)
    return scaled(weight, fold_factor(state, source.fold), source.axis)


def kept_weight_name(group: str, source: WeightSource) -> str:
    """Name of a learned weight scale in :attr:`State.places`."""
    return f"{group}|{source.path}" if source.path else group


def _kept_name(state: State, point: WeightPoint) -> str | None:
    name = kept_weight_name(point.group, point.source) if point.per_channel else point.group
    return name if name in state.places else None


def _amax(weight: torch.Tensor, axis: int | None) -> torch.Tensor:
    magnitude = weight.detach().abs()
    if axis is None:
        return magnitude.amax().to(torch.float32)
    others = [each for each in range(weight.ndim) if each != axis]
    return magnitude.amax(dim=others).to(torch.float32)
