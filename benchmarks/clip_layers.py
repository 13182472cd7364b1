"""Time the layers of CLIP ViT-L/14 in PyTorch, FP16 and FP8, as benchmarks/cost_h200.py predicts them.

    python benchmarks/clip_layers.py [--json FILE]

Needs PyTorch with CUDA. Random weights, batch 128, torch.compile in its default mode, replayed as a
CUDA graph, medians. FP8: torch._scaled_mm with static per-tensor scales and fast accumulation, the
quantization left to torch.compile. Kernel times are those of the profiler, summed by name.
"""

# ruff: noqa: PLC0415 - torch is imported where a GPU is expected
from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from ceilings import graph_us
from cost_h200 import IMAGE, TEXT, Encoder


def weights(encoder: Encoder, dtype: str) -> list[dict[str, Any]]:
    """Linear weights ``(in, out)``, column-major as FP8 products want them, and biases."""
    import torch

    def linear(inner: int, outer: int) -> tuple[Any, Any]:
        w = torch.randn(outer, inner, device="cuda", dtype=torch.float16) * inner**-0.5
        w = w.to(torch.float8_e4m3fn) if dtype == "fp8" else w
        return w.t(), torch.zeros(outer, device="cuda", dtype=torch.float16)

    width = encoder.width
    shapes = dict.fromkeys(("q", "k", "v", "projected"), (width, width))
    shapes |= {"hidden": (width, 4 * width), "mlp": (4 * width, width)}
    return [{name: linear(*shape) for name, shape in shapes.items()} for _ in range(encoder.layers)]


def run(encoder: Encoder, dtype: str, layers: list[dict[str, Any]], x: Any) -> Any:
    """All layers of the encoder on ``x`` of shape ``(batch, tokens, width)``."""
    import torch
    from torch.nn import functional

    one = torch.ones((), device="cuda")

    def narrow(a: Any) -> Any:
        return a.clamp(-448, 448).to(torch.float8_e4m3fn) if dtype == "fp8" else a

    def linear(a: Any, parameters: tuple[Any, Any]) -> Any:
        w, bias = parameters
        if dtype != "fp8":
            return torch.addmm(bias, a, w)
        return torch._scaled_mm(
            a, w, one, one, bias=bias, out_dtype=torch.float16, use_fast_accum=True
        )

    def as_heads(a: Any) -> Any:
        size = encoder.width // encoder.heads
        return a.view(encoder.batch, encoder.tokens, encoder.heads, size).transpose(1, 2)

    residual = x.reshape(-1, encoder.width)
    for layer in layers:
        normed = narrow(functional.layer_norm(residual, (encoder.width,)))
        q, k, v = (as_heads(linear(normed, layer[name])) for name in "qkv")
        context = functional.scaled_dot_product_attention(q, k, v)
        context = context.transpose(1, 2).reshape(-1, encoder.width)
        residual = residual + linear(narrow(context), layer["projected"])
        normed = narrow(functional.layer_norm(residual, (encoder.width,)))
        hidden = linear(normed, layer["hidden"])
        residual = residual + linear(narrow(hidden * (1.702 * hidden).sigmoid()), layer["mlp"])
    return residual


def kernels_us(step: partial[Any]) -> dict[str, list[float]]:
    """Count and total microseconds of each GPU kernel of one call, largest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
    rows = [
        (row.key[:80], row.count, row.self_device_time_total) for row in profiler.key_averages()
    ]
    rows.sort(key=lambda row: -row[2])
    return {name: [count, total] for name, count, total in rows[:12]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    document: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    compiled = torch.compile(run, dynamic=False)
    for encoder in (IMAGE, TEXT):
        x = torch.randn(
            encoder.batch, encoder.tokens, encoder.width, device="cuda", dtype=torch.float16
        )
        for dtype in ("fp16", "fp8"):
            with torch.no_grad():
                step = partial(compiled, encoder, dtype, weights(encoder, dtype), x)
                ms = graph_us([step], 1.0) / 1e3
                document[f"{encoder.name} {dtype}"] = {"ms": ms, "kernels_us": kernels_us(step)}
            print(encoder.name, dtype, f"{ms:.2f} ms", flush=True)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
