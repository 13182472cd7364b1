"""Measure what one GPU reaches under load, the numbers behind the cost model's constants.

    python benchmarks/ceilings.py [--json FILE]

Needs PyTorch with CUDA. Random data, rotated buffers, CUDA graphs, medians of CUDA events: GEMMs of
the CLIP ViT-L/14 encoders in FP16 and FP8, fused attention, streaming adds over a range of sizes
(L2 or DRAM) and an almost empty kernel (the launch).
"""

# ruff: noqa: PLC0415 - torch is imported where a GPU is expected
from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

GEMMS = (
    # (m, k, n): q, k and v merged; output projection; the two layers of the MLP
    *((32896, 1024, 3072), (32896, 1024, 1024), (32896, 1024, 4096), (32896, 4096, 1024)),
    *((9856, 768, 2304), (9856, 768, 768), (9856, 768, 3072), (9856, 3072, 768)),
    *((8192, 8192, 8192), (2056, 1024, 4096), (257, 1024, 4096)),
)
ATTENTIONS = ((2048, 257, 64), (1536, 77, 64))
STREAM_MIB = (0.25, 1, 2, 4, 8, 12, 16, 24, 32, 64, 256, 1024)


def graph_us(steps: list[Callable[[], Any]], seconds: float = 0.5) -> float:
    """Median time of one step, microseconds; ``steps`` run one after the other in a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for step in steps:
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in steps:
            step()
    times_ms: list[float] = []
    while sum(times_ms) < seconds * 1e3:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_ms.append(begin.elapsed_time(end))
    late = sorted(times_ms[len(times_ms) // 2 :])  # the clocks have settled
    return 1e3 * late[len(late) // 2] / len(steps)


def gemm_rows() -> list[dict[str, Any]]:
    """FP16 with FP32 accumulation, and FP8 by ``torch._scaled_mm`` with per-tensor scales."""
    import torch

    rows = []
    for m, k, n in GEMMS:
        count = max(2, min(8, int(2e9 // (2 * (m * k + k * n + m * n)))))
        a = [torch.randn(m, k, device="cuda", dtype=torch.float16) for _ in range(count)]
        b = [torch.randn(n, k, device="cuda", dtype=torch.float16) for _ in range(count)]
        one = torch.ones((), device="cuda")
        a8 = [t.to(torch.float8_e4m3fn) for t in a]
        b8 = [t.to(torch.float8_e4m3fn) for t in b]
        matmul = [partial(torch.matmul, a[i], b[i].t()) for i in range(count)]
        scaled = partial(
            torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.float16, use_fast_accum=True
        )
        fp16 = graph_us(matmul)
        fp8 = graph_us([partial(scaled, a8[i], b8[i].t()) for i in range(count)])
        for dtype, us in (("fp16", fp16), ("fp8", fp8)):
            tflops = 2 * m * n * k / us / 1e6
            rows.append({"m": m, "k": k, "n": n, "dtype": dtype, "us": us, "tflops": tflops})
    return rows


def attention_rows() -> list[dict[str, Any]]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    rows = []
    for heads, tokens, size in ATTENTIONS:
        q, k, v = (
            torch.randn(heads // 16, 16, tokens, size, device="cuda", dtype=torch.float16)
            for _ in range(3)
        )
        us = graph_us([partial(scaled_dot_product_attention, q, k, v)] * 4)
        rows.append({"heads": heads, "tokens": tokens, "head_dim": size, "us": us})
    return rows


def stream_rows() -> list[dict[str, Any]]:
    """``y = x + 1`` over FP16: in place on one buffer (stays in L2) and over many (does not)."""
    import torch

    rows = []
    for mib in STREAM_MIB:
        elements = int(mib * 2**20 / 2)
        x = torch.zeros(elements, device="cuda", dtype=torch.float16)
        again = graph_us([partial(x.add_, 1)] * 20, 0.2)
        others = [torch.zeros_like(x) for _ in range(max(2, min(64, int(1024 / mib))))]
        fresh = graph_us([partial(other.add_, 1) for other in others], 0.2)
        for kind, us in (("same buffer", again), ("many buffers", fresh)):
            gbs = 2 * x.nbytes / us / 1e3
            rows.append({"mib": mib, "kind": kind, "us": us, "gbs": gbs})
        del others
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no CUDA GPU: nothing measured", file=sys.stderr)
        return 1
    tiny = torch.zeros(8, device="cuda")
    document = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "launch_us": graph_us([partial(tiny.add_, 1)] * 100, 0.2),
        "gemm": gemm_rows(),
        "attention": attention_rows(),
        "stream": stream_rows(),
    }
    text = json.dumps(document, indent=1)
    if options.json:
        options.json.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
