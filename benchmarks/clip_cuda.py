"""CLIP ViT-L/14 on one GPU: FP16 eager, FP16 torch.compile, torchao FP8, fuseq FP8 and INT8.

    python benchmarks/clip_cuda.py [--batches 1 8 32 128] [--encoders image text] [--out FILE.json]

Random weights, one process, medians by CUDA events over rotated inputs. A torch.compile mode that
needs more than two minutes to compile is measured and reported, but is not the baseline. Cosine is
that of the projected embeddings with the FP32 module's, on held-out inputs.
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
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

import fuseq.torch
from fuseq.torch.compiling import compile as compile_plan

ROTATED = 4
Encode = Callable[[torch.Tensor], torch.Tensor]


def encoder(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "image":
        config = CLIPVisionConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
            num_attention_heads=16, image_size=224, patch_size=14, projection_dim=768,
        )  # fmt: skip
        return CLIPVisionModelWithProjection(config).eval()
    config = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
        projection_dim=768, eos_token_id=49407,
    )  # fmt: skip
    return CLIPTextModelWithProjection(config).eval()


def inputs(name: str, batch: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if name == "image":
        return torch.randn(batch, 3, 224, 224, generator=generator)
    tokens = torch.randint(0, 49400, (batch, 77), generator=generator)
    lengths = torch.randint(8, 77, (batch,), generator=generator)
    tokens[torch.arange(77)[None, :] >= lengths[:, None]] = 49407
    return tokens


def embeds(result: Any) -> torch.Tensor:
    for key in ("image_embeds", "text_embeds"):
        if hasattr(result, key):
            return getattr(result, key)
    return result[0]


def median_us(run: Encode, batches: list[torch.Tensor], repeats: int = 30) -> float:
    with torch.no_grad():
        for batch in batches:
            run(batch)
        torch.cuda.synchronize()
        times = []
        for turn in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run(batches[turn % len(batches)])
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def half_of(name: str) -> torch.nn.Module:
    return encoder(name).half().cuda()


def torchao_run(name: str) -> Encode:
    from torchao.quantization import (  # noqa: PLC0415
        Float8DynamicActivationFloat8WeightConfig,
        quantize_,
    )

    model = half_of(name).bfloat16()
    quantize_(model, Float8DynamicActivationFloat8WeightConfig())
    compiled = torch.compile(model, dynamic=False)
    return lambda batch: compiled(batch.bfloat16() if batch.is_floating_point() else batch)


def fuseq_run(name: str, fmt: str) -> torch.nn.Module:
    module = encoder(name)
    example = inputs(name, 2, 1)
    argument = {"pixel_values" if name == "image" else "input_ids": example}
    prepared = fuseq.torch.prepare(module, argument, fmt, "torch:cuda", inplace=True)
    key = next(iter(argument))
    loader = [{key: inputs(name, 8, 10)}]
    fuseq.torch.calibrate(prepared, loader)
    return compile_plan(prepared)


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


def one(name: str, run: Encode, batch: int, reference: torch.Tensor | None) -> dict[str, Any]:
    is_half = name.startswith("fp16")
    rotated = [inputs_of(batch, seed) for seed in range(ROTATED)]
    rotated = [b.half() if is_half and b.is_floating_point() else b for b in rotated]
    began = time.perf_counter()
    with torch.no_grad():
        run(rotated[0])
    torch.cuda.synchronize()
    row: dict[str, Any] = {"compile_s": round(time.perf_counter() - began, 1)}
    row["median_us"] = round(median_us(run, rotated), 1)
    if reference is not None:
        with torch.no_grad():
            found = embeds(run(rotated[0])).float()
        row["cosine"] = round(
            torch.nn.functional.cosine_similarity(found, reference).mean().item(), 5
        )
    row["weights_bytes"] = weights_bytes(run)
    return row


ENCODER = {"name": "image"}


def inputs_of(batch: int, seed: int) -> torch.Tensor:
    return inputs(ENCODER["name"], batch, 100 + seed).cuda()


def measure(
    name: str, batches: list[int], modes: list[str], formats: list[str], no_torchao: bool = False
) -> dict[str, Any]:
    ENCODER["name"] = name
    rows: dict[str, Any] = {}
    makers: dict[str, Callable[[], Encode]] = {
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
    full = encoder(name).cuda()
    references = {}
    for batch in batches:
        with torch.no_grad():
            references[batch] = embeds(full(inputs_of(batch, 0))).float()
    del full
    for label, make in makers.items():
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        try:
            run = make()
            for batch in batches:
                if batch != max(batches) and label.startswith("fp16 compile default"):
                    continue  # small batches want CUDA graphs
                rows[f"{label} b{batch}"] = one(label, run, batch, references[batch])
                print(name, label, batch, rows[f"{label} b{batch}"], flush=True)
        except (ImportError, RuntimeError, AssertionError, TypeError, ValueError) as error:
            rows[label] = {"failed": f"{type(error).__name__}: {error}"[:500]}
            print(name, label, "failed:", rows[label]["failed"], flush=True)
        run = None
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--encoders", nargs="+", default=["image", "text"])
    parser.add_argument("--formats", nargs="*", default=["fp8", "int8"])
    parser.add_argument(
        "--modes", nargs="*", default=["default", "reduce-overhead", "max-autotune"]
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {"gpu": properties.name, "torch": torch.__version__}
    for name in given.encoders:
        found[name] = measure(name, given.batches, given.modes, given.formats)
        if given.out:
            given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
