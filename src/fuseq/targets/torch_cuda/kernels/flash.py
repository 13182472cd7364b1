"""Attention of short sequences in one kernel, reading FP8 or FP16 and writing FP8 or FP16.

The online softmax of FlashAttention (Dao et al. 2022, arXiv:2205.14135, algorithm 1). Query-key
products run on the stored FP8 values; probabilities stay in registers as FP16 and meet the value
widened to FP16, which is exact. What is left over of the keys beyond whole blocks gets a block of
its own, no longer than needed: 257 keys cost 4 x 64 + 16, not 5 x 64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from fuseq.targets.torch_cuda.held import LIMITS

_LOG2_E = 1.4426950408889634


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    q, best, total, acc, key, value, mask, start, rows, KEYS, scale,
    sk_n, sv_n, sm_n, WIDTH: tl.constexpr, SIZE: tl.constexpr, BOUNDED: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, QUERIES,
):  # fmt: skip
    n = start + tl.arange(0, WIDTH)
    d = tl.arange(0, SIZE)
    if BOUNDED:
        k = tl.load(key + n[:, None] * sk_n + d[None, :], mask=n[:, None] < KEYS, other=0.0)
        v = tl.load(value + n[:, None] * sv_n + d[None, :], mask=n[:, None] < KEYS, other=0.0)
    else:
        k = tl.load(key + n[:, None] * sk_n + d[None, :])
        v = tl.load(value + n[:, None] * sv_n + d[None, :])
    s = tl.dot(q, tl.trans(k)) * scale
    if HAS_MASK:
        inside = (rows[:, None] < QUERIES) & (n[None, :] < KEYS)
        s += (
            tl.load(mask + n[None, :] * sm_n, mask=inside, other=0.0).to(tl.float32)
            * 1.4426950408889634
        )
    if BOUNDED:
        s = tl.where(n[None, :] < KEYS, s, -1e30)
    if CAUSAL:
        s = tl.where(n[None, :] <= rows[:, None], s, -1e30)
    peak = tl.maximum(best, tl.max(s, 1))
    fade = tl.exp2(best - peak)
    p = tl.exp2(s - peak[:, None])
    total = total * fade + tl.sum(p, 1)
    acc = tl.dot(p.to(tl.float16), v.to(tl.float16), acc * fade[:, None])
    return peak, total, acc


_CONFIGS = [
    triton.Config({"BM": rows, "BN": keys}, num_warps=warps, num_stages=stages)
    for rows, keys, warps, stages in (
        (64, 64, 4, 3),
        (64, 64, 4, 2),
        (128, 64, 8, 3),
        (128, 64, 4, 2),
        (64, 128, 4, 2),
        (128, 128, 8, 2),
    )
]


@triton.autotune(
    configs=_CONFIGS,
    key=["QUERIES", "KEYS", "HEADS", "BATCH", "SIZE", "CAUSAL", "HAS_MASK", "LIMIT", "IS_FP8"],
    cache_results=False,
)
@triton.jit
def _attention(  # type: ignore[no-untyped-def]
    Q, K, V, MASK, O, sq_b, sq_h, sq_m, sk_b, sk_h, sk_n, sv_b, sv_h, sv_n,
    sm_b, sm_h, sm_m, sm_n, so_b, so_h, so_m, BATCH, HEADS, QUERIES, KEYS, scale, out_factor,
    BM: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_MASK: tl.constexpr, LIMIT: tl.constexpr, ROUNDS: tl.constexpr, IS_FP8: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    batch = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    rows = block * BM + tl.arange(0, BM)
    d = tl.arange(0, SIZE)
    q = tl.load(
        Q + batch * sq_b + head * sq_h + rows[:, None] * sq_m + d[None, :],
        mask=rows[:, None] < QUERIES, other=0.0,
    )  # fmt: skip
    key = K + batch * sk_b + head * sk_h
    value = V + batch * sv_b + head * sv_h
    mask = MASK + batch * sm_b + head * sm_h + rows[:, None] * sm_m
    best = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, SIZE], tl.float32)
    whole = (KEYS // BN) * BN
    end = whole
    if CAUSAL:
        end = tl.minimum(whole, tl.cdiv((block + 1) * BM, BN) * BN)
    for start in range(0, end, BN):
        best, total, acc = _step(
            q, best, total, acc, key, value, mask, start, rows, KEYS, scale, sk_n, sv_n, sm_n,
            BN, SIZE, False, CAUSAL, HAS_MASK, QUERIES,
        )  # fmt: skip
    # The rest of the keys, in a block of the next power of two; a causal block that ends before
    # them has nothing to read there.
    rest = KEYS - whole
    if rest > 0 and ((not CAUSAL) or (block + 1) * BM > whole):
        if BN > 64:
            if rest >= 64:
                best, total, acc = _step(
                    q, best, total, acc, key, value, mask, whole, rows, KEYS, scale, sk_n, sv_n,
                    sm_n, BN, SIZE, True, CAUSAL, HAS_MASK, QUERIES,
                )  # fmt: skip
            else:
                best, total, acc = _step(
                    q, best, total, acc, key, value, mask, whole, rows, KEYS, scale, sk_n, sv_n,
                    sm_n, TAIL, SIZE, True, CAUSAL, HAS_MASK, QUERIES,
                )  # fmt: skip
        else:
            best, total, acc = _step(
                q, best, total, acc, key, value, mask, whole, rows, KEYS, scale, sk_n, sv_n, sm_n,
                TAIL, SIZE, True, CAUSAL, HAS_MASK, QUERIES,
            )  # fmt: skip
    out = acc * (out_factor / total)[:, None]
    if ROUNDS:
        out = libdevice.rint(out)
    if LIMIT:
        out = tl.minimum(tl.maximum(out, -LIMIT), LIMIT)
    tl.store(
        O + batch * so_b + head * so_h + rows[:, None] * so_m + d[None, :],
        out.to(O.dtype.element_ty), mask=rows[:, None] < QUERIES,
    )  # fmt: skip


def run(
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
    """See :func:`fuseq.targets.torch_cuda.kernels.attention`; [B, H, tokens, D] on a GPU."""
    query, key, value = (_dense_rows(part) for part in (query, key, value))
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    out = torch.empty(batch, queries, heads, size, dtype=dtype, device=query.device).transpose(1, 2)
    masked = query if mask is None else mask
    rest = keys % 64
    _attention[lambda meta: (triton.cdiv(queries, meta["BM"]), batch * heads)](
        query, key, value, masked, out,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *masked.stride(),
        *out.stride()[:3], batch, heads, queries, keys, product_scale * _LOG2_E,
        value_scale / out_scale if dtype in LIMITS else value_scale,
        SIZE=size, CAUSAL=is_causal, HAS_MASK=mask is not None, LIMIT=int(LIMITS.get(dtype, 0)), ROUNDS=dtype == torch.int8,
        IS_FP8=query.dtype == torch.float8_e4m3fn,
        TAIL=max(16, triton.next_power_of_2(rest)) if rest else 16,
    )  # fmt: skip
    return out


def _dense_rows(part: torch.Tensor) -> torch.Tensor:
    """The kernel reads whole rows: the last axis must be dense."""
    return part if part.stride(-1) == 1 else part.contiguous()
