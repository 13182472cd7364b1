"""What a kernel does to its FP32 result, in PyTorch's operators."""

from __future__ import annotations

import torch

from fuseq.targets.torch_cuda.held import LIMITS, quantize


def activated(data: torch.Tensor, activation: str, slope: float) -> torch.Tensor:
    """Apply an activation by name, in FP32; any shape.

    ``sigmoid`` is ``x * sigmoid(slope * x)``: SiLU at 1, CLIP's approximation of GELU at 1.702.
    """
    if activation == "relu":
        return torch.relu(data)
    if activation == "gelu":
        return torch.nn.functional.gelu(data)
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(data, approximate="tanh")
    if activation == "sigmoid":
        return data * torch.sigmoid(slope * data)
    return data


def finished(data: torch.Tensor, out_scale: float, dtype: torch.dtype) -> torch.Tensor:
    """FP32 to the type of the result, quantized with ``out_scale`` where that has 8 bits."""
    return quantize(data, out_scale, dtype) if dtype in LIMITS else data.to(dtype)


def with_epilogue(
    product: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    slope: float,
    out_scale: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``activation(scale * product + bias) + residual`` in ``dtype``; product [M, N] FP32.

    The other arguments are those of :func:`fuseq.targets.torch_cuda.kernels.linear`.
    """
    result = product * scale
    if bias is not None:
        result = result + bias.to(torch.float32)
    result = activated(result, activation, slope)
    if residual is not None:
        result = result + residual.to(torch.float32)
    return finished(result, out_scale, dtype)
