"""The kernels of target ``torch:cuda`` as PyTorch operators: Triton on a GPU, the same sums on a CPU.

The CPU version is the reference: FP32 products of the stored 8-bit values, the same epilogue, the
same saturating rounding. A GPU adds in another order; results agree up to that.
"""

from __future__ import annotations

import torch

from fuseq.targets.torch_cuda.kernels import products
from fuseq.targets.torch_cuda.kernels.epilogue import finished, with_epilogue


@torch.library.custom_op("fuseq::linear", mutates_args=(), device_types="cpu")
def linear(
    data: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    slope: float,
    out_scale: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``activation(scale * data @ weight.T + bias) + residual``, quantized where asked.

    Args:
        data: [M, K] FP8 or INT8.
        weight: [N, K], the same type.
        scale: [N] FP32: scale of the data times scale of each row of the weight.
        bias: [N] or None.
        residual: [M, N] or None.
        activation: See :func:`fuseq.targets.torch_cuda.kernels.epilogue.activated`.
        slope: See there.
        out_scale: Scale of a quantized result.
        dtype: Type of the result: a float type, or FP8 or INT8, to which it is quantized.

    Returns:
        [M, N].
    """
    product = data.to(torch.float32) @ weight.to(torch.float32).t()
    return with_epilogue(product, scale, bias, residual, activation, slope, out_scale, dtype)


@linear.register_fake
def _(data, weight, scale, bias, residual, activation, slope, out_scale, dtype):  # type: ignore[no-untyped-def]
    return torch.empty(data.shape[0], weight.shape[0], dtype=dtype, device=data.device)


@linear.register_kernel("cuda")
def _(data, weight, scale, bias, residual, activation, slope, out_scale, dtype):  # type: ignore[no-untyped-def]
    if torch.cuda.get_device_capability(data.device) < (9, 0):
        return products.run(
            data, weight, scale, bias, residual, activation, slope, out_scale, dtype
        )
    from fuseq.targets.torch_cuda.kernels.gemm import run  # noqa: PLC0415 (Triton needs a GPU)

    return run(data, weight, scale, bias, residual, activation, slope, out_scale, dtype)


@torch.library.custom_op("fuseq::attention", mutates_args=(), device_types="cpu")
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    product_scale: float,
    value_scale: float,
    is_causal: bool,
    out_scale: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``value_scale * softmax(product_scale * query @ key.T + mask) @ value``, quantized if asked.

    The softmax output stays in FP16: it is in registers, so a pair on it would save nothing.

    Args:
        query: [B, H, Q, D] FP8 or a float type.
        key: [B, H, K, D].
        value: [B, H, K, D].
        mask: [B, H, Q, K] added to the products, or None.
        product_scale: Scales of query and key times the attention's own factor.
        value_scale: Scale of the value.
        is_causal: A query sees the keys up to its own index.
        out_scale: Scale of a quantized result.
        dtype: Type of the result: a float type, or FP8 or INT8, to which it is quantized.

    Returns:
        [B, H, Q, D], in memory [B, Q, H, D].
    """
    scores = query.to(torch.float32) @ key.to(torch.float32).transpose(-1, -2) * product_scale
    if mask is not None:
        scores = scores + mask.to(torch.float32)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    result = torch.softmax(scores, -1) @ value.to(torch.float32) * value_scale
    return finished(result, out_scale, dtype).transpose(1, 2).contiguous().transpose(1, 2)


@attention.register_fake
def _(query, key, value, mask, product_scale, value_scale, is_causal, out_scale, dtype):  # type: ignore[no-untyped-def]
    batch, heads, tokens, size = query.shape
    return torch.empty(batch, tokens, heads, size, dtype=dtype, device=query.device).transpose(1, 2)


@attention.register_kernel("cuda")
def _(query, key, value, mask, product_scale, value_scale, is_causal, out_scale, dtype):  # type: ignore[no-untyped-def]
    from fuseq.targets.torch_cuda.kernels.flash import run  # noqa: PLC0415 (Triton needs a GPU)

    return run(
        query, key, value, mask, product_scale, value_scale, is_causal, out_scale, dtype
    )  # fmt: skip
