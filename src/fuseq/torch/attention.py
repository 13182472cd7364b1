"""Attention in its parts, so that query, key, softmax and value can be fake-quantized one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

Quantizer = Callable[[torch.Tensor], torch.Tensor]


def attention(  # noqa: PLR0913 (the arguments of scaled_dot_product_attention)
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    quantizers: Mapping[str, Quantizer],
) -> torch.Tensor:
    """``softmax(q k^T * scale + mask) v`` as torch.nn.functional.scaled_dot_product_attention gives.

    Source: the reference implementation in that function's documentation. The scale is on the query
    before the product, as in the exported graph.

    Args:
        query: ``[..., heads, length, width]``; key and value alike.
        key: See ``query``.
        value: See ``query``.
        attn_mask: Bool (True takes part) or float that is added.
        dropout_p: Dropout of the softmax output.
        is_causal: Lower triangular mask from the top left.
        scale: None is ``1 / sqrt(width)``.
        enable_gqa: Key and value heads are repeated.
        quantizers: By ``query``, ``key``, ``softmax``, ``value``; a missing one does nothing.
    """

    def quantized(role: str, x: torch.Tensor) -> torch.Tensor:
        return quantizers[role](x) if role in quantizers else x

    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    factor = query.size(-1) ** -0.5 if scale is None else scale
    left = quantized("query", query) * factor
    scores = left @ quantized("key", key).transpose(-2, -1)
    if is_causal:
        shape = (query.size(-2), key.size(-2))
        allowed = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if attn_mask is not None:
        scores = (
            scores.masked_fill(~attn_mask, float("-inf"))
            if attn_mask.dtype == torch.bool
            else scores + attn_mask
        )
    weights = torch.softmax(scores, dim=-1)
    if dropout_p > 0.0:
        weights = functional.dropout(weights, dropout_p, True)
    return quantized("softmax", weights) @ quantized("value", value)
