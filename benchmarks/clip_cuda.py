"""CLIP ViT-L/14 and others on one GPU: FP16 eager, FP16 torch.compile, torchao FP8, fuseq FP8 and INT8.

    python benchmarks/clip_cuda.py [--batches 1 8 32 128] [--nets image text] [--out FILE.json]

Nets are those of cuda_nets.py: image and text (CLIP), vit_b16, bert_base, minilm, efficientnet_b0.
Random weights, one process, medians by CUDA events over rotated inputs. A torch.compile mode that
needs more than two minutes to compile is measured and reported, but is not the baseline. Cosine is
that of the embeddings with the FP32 module's, on held-out inputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fuseq.torch
from cuda_nets import NETS, Inputs, embedding, float_module
from fuseq.torch.compiling import compile as compile_plan

ROTATED = 4
Run = Callable[..., Any]


def median_us(run: Run, batches: list[Inputs], repeats: int = 30) -> float:
    with torch.no_grad():
        for batch in batches:
            run(**batch)
        torch.cuda.synchronize()
        times = []
        for turn in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run(**batches[turn % len(batches)])
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def half_of(name: str) -> torch.nn.Module:
    return float_module(name).half().cuda()


def torchao_run(name: str) -> Run:
    from torchao.quantization import (  # noqa: PLC0415
        Float8DynamicActivationFloat8WeightConfig,
        quantize_,
    )

    model = half_of(name).bfloat16()
    quantize_(model, Float8DynamicActivationFloat8WeightConfig())
    compiled = torch.compile(model, dynamic=False)
    return lambda **batch: compiled(**as_type(batch, torch.bfloat16))


def fuseq_run(name: str, fmt: str) -> torch.nn.Module:
    net = NETS[name]
    prepared = fuseq.torch.prepare(
        float_module(name), net.inputs(2, 1), fmt, "torch:cuda", inplace=True
    )
    fuseq.torch.calibrate(prepared, [net.inputs(8, 10)])
    return compile_plan(prepared)


def as_type(batch: Inputs, dtype: torch.dtype) -> Inputs:
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}


def weights_bytes(run: Any) -> int | None:
    if isinstance(run, torch.nn.Module) and not hasattr(run, "run"):
        return sum(t.numel() * t.element_size() for t in (*run.parameters(), *run.buffers()))
    inner = getattr(run, "run", None)
    if inner is None:
        return None
    lowered = next(iter(inner._lowered.values()), None)
    if lowered is None:
        return None
    return sum(t.numel() * t.element_size() for t in lowered.module.buffers())


def one(
    name: str, label: str, run: Run, batch: int, reference: torch.Tensor | None
) -> dict[str, Any]:
    rotated = [held_out(name, batch, seed) for seed in range(ROTATED)]
    if label.startswith("fp16"):
        rotated = [as_type(each, torch.float16) for each in rotated]
    began = time.perf_counter()
    with torch.no_grad():
        run(**rotated[0])
    torch.cuda.synchronize()
    row: dict[str, Any] = {"compile_s": round(time.perf_counter() - began, 1)}
    row["median_us"] = round(median_us(run, rotated), 1)
    if reference is not None:
        with torch.no_grad():
            found = embedding(run(**rotated[0]))
        row["cosine"] = round(
            torch.nn.functional.cosine_similarity(found, reference).mean().item(), 5
        )
    row["weights_bytes"] = weights_bytes(run)
    return row


def held_out(name: str, batch: int, seed: int) -> Inputs:
    return {key: value.cuda() for key, value in NETS[name].inputs(batch, 100 + seed).items()}


def measure(
    name: str, batches: list[int], modes: list[str], formats: list[str], no_torchao: bool = False
) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    makers: dict[str, Callable[[], Run]] = {
        "fp16 eager": lambda: half_of(name),
        **{
            f"fp16 compile {mode}": (
                lambda mode=mode: torch.compile(
                    half_of(name), dynamic=False, mode=None if mode == "default" else mode
                )
            )
            for mode in modes
        },
        **({} if no_torchao else {"torchao fp8": lambda: torchao_run(name)}),
        **{f"fuseq {fmt}": (lambda fmt=fmt: fuseq_run(name, fmt)) for fmt in formats},
    }
    full = float_module(name).cuda()
    references = {}
    for batch in batches:
        with torch.no_grad():
            references[batch] = embedding(full(**held_out(name, batch, 0)))
    del full
    for label, make in makers.items():
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        try:
            run = make()
            for batch in batches:
                if batch != max(batches) and label.startswith("fp16 compile default"):
                    continue  # small batches want CUDA graphs
                rows[f"{label} b{batch}"] = one(name, label, run, batch, references[batch])
                print(name, label, batch, rows[f"{label} b{batch}"], flush=True)
        except (ImportError, RuntimeError, AssertionError, TypeError, ValueError) as error:
            rows[label] = {"failed": f"{type(error).__name__}: {error}"[:500]}
            print(name, label, "failed:", rows[label]["failed"], flush=True)
        run = None
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), default=["image", "text"])
    parser.add_argument("--formats", nargs="*", default=["fp8", "int8"])
    parser.add_argument(
        "--modes", nargs="*", default=["default", "reduce-overhead", "max-autotune"]
    )
    parser.add_argument("--no-torchao", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {"gpu": properties.name, "torch": torch.__version__}
    for name in given.nets:
        found[name] = measure(name, given.batches, given.modes, given.formats, given.no_torchao)
        if given.out:
            given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
