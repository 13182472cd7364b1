"""Compare the cost model with PyTorch on an H200: single kernels, and CLIP ViT-L/14 in FP16 and FP8.

    python benchmarks/cost_h200.py [CEILINGS.json]

The file is what benchmarks/ceilings.py wrote on the GPU. The CLIP kernels are those that
torch.compile makes: LayerNorm with the residual before it, one GEMM for each linear layer with its
bias, flash attention, one kernel for the activation. In FP8 (torch._scaled_mm, per-tensor static
scales) the quantization is part of the kernel before, but for the attention's output, which gets a
kernel of its own; attention and residuals stay FP16.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path

from fuseq.targets.base import Kernel, KernelType, TensorInfo
from fuseq.targets.cost import predict_us, with_predictions
from fuseq.targets.gpus import gpu_for

BYTES = {"fp8": 1, "fp16": 2}


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A transformer encoder and what was measured on an H200, milliseconds.

    ``fp16_ms`` and ``fp8_ms`` are its layers by benchmarks/clip_layers.py; ``whole_fp16_ms`` (the best
    torch.compile) and ``whole_fused_ms`` (fuseq FP8) the whole encoder by benchmarks/clip_cuda.py.
    """

    name: str
    layers: int
    tokens: int
    width: int
    heads: int
    fp16_ms: float
    fp8_ms: float
    whole_fp16_ms: float
    whole_fused_ms: float
    batch: int = 128


IMAGE = Encoder("image", 24, 257, 1024, 16, 44.58, 30.61, 46.09, 25.96)
TEXT = Encoder("text", 12, 77, 768, 12, 4.09, 3.07, 4.86, 2.61)


def tensor(name: str, shape: tuple[int, ...], dtype: str) -> TensorInfo:
    size = BYTES[dtype]
    for length in shape:
        size *= length
    return TensorInfo(name, shape, dtype, size)


def gemm(a: TensorInfo, name: str, n: int) -> Kernel:
    m, k = a.shape
    return Kernel(
        name=f"gemm {name}",
        type=KernelType.GEMM,
        compiler_type="gemm",
        inputs=(a,),
        outputs=(tensor(name, (m, n), "fp16"),),
        weights_bytes=k * n * BYTES[a.dtype] + 2 * n,
        flops=2 * m * k * n,
        compute_dtype=a.dtype,
    )


def pointwise(name: str, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]) -> Kernel:
    return Kernel(name, KernelType.ELEMENTWISE, "triton", inputs, outputs)


def attention(q: TensorInfo, k: TensorInfo, v: TensorInfo, out: TensorInfo) -> Kernel:
    blocks, tokens, size = q.shape
    return Kernel(
        name="attention",
        type=KernelType.ATTENTION,
        compiler_type="flash",
        inputs=(q, k, v),
        outputs=(out,),
        flops=4 * blocks * tokens * tokens * size,
        compute_dtype="fp16",
    )


def block(encoder: Encoder, index: int, dtype: str) -> list[Kernel]:
    """Kernels of one layer; ``dtype`` is what the linear layers read."""
    rows, width = encoder.batch * encoder.tokens, encoder.width
    heads = (encoder.batch * encoder.heads, encoder.tokens, width // encoder.heads)

    def flat(name: str, n: int = width, of: str = "fp16") -> TensorInfo:
        return tensor(f"{name}{index}", (rows, n), of)

    def as_heads(name: str) -> TensorInfo:
        return tensor(f"{name}{index}", heads, "fp16")

    before = tensor(f"residual{index - 1}", (rows, width), "fp16")
    branch = tensor(f"mlp{index - 1}", (rows, width), "fp16")
    middle, normed, normed2 = flat("middle"), flat("normed", of=dtype), flat("normed2", of=dtype)
    attended = flat("attended", of=dtype)
    kernels = [
        pointwise("add, norm", (before, branch), (flat("sum"), normed)),
        *(gemm(normed, f"{name}{index}", width) for name in "qkv"),
        attention(as_heads("q"), as_heads("k"), as_heads("v"), as_heads("context")),
    ]
    if dtype == "fp8":
        kernels.append(pointwise("quantize", (as_heads("context"),), (attended,)))
    read = attended if dtype == "fp8" else dataclasses.replace(attended, name=f"context{index}")
    activated = flat("activated", 4 * width, dtype)
    return [
        *kernels,
        gemm(read, f"projected{index}", width),
        pointwise("add, norm", (flat("sum"), flat("projected")), (middle, normed2)),
        gemm(normed2, f"hidden{index}", 4 * width),
        pointwise("quick_gelu", (flat("hidden", 4 * width),), (activated,)),
        gemm(activated, f"mlp{index}", width),
    ]


def fused_block(encoder: Encoder, index: int) -> list[Kernel]:
    """Kernels of one layer on target torch:cuda: the epilogues hold what is left between GEMMs."""
    rows, width = encoder.batch * encoder.tokens, encoder.width
    heads = (encoder.batch * encoder.heads, encoder.tokens, width // encoder.heads)

    def flat(name: str, n: int = width, of: str = "fp8") -> TensorInfo:
        return tensor(f"{name}{index}", (rows, n), of)

    def part(name: str) -> TensorInfo:
        return tensor(f"{name}{index}", heads, "fp8")

    def fused(a: TensorInfo, out: TensorInfo, residual: TensorInfo | None = None) -> Kernel:
        plain = gemm(a, out.name, out.shape[1])
        inputs = (a,) if residual is None else (a, residual)
        return dataclasses.replace(plain, inputs=inputs, outputs=(out,))

    before = tensor(f"residual{index - 1}", (rows, width), "fp16")
    middle, after = flat("middle", of="fp16"), flat("residual", of="fp16")
    return [
        pointwise("norm", (before,), (flat("normed"),)),
        fused(flat("normed"), flat("qkv", 3 * width)),
        dataclasses.replace(
            attention(part("q"), part("k"), part("v"), part("context")), compute_dtype="fp16"
        ),
        fused(part_as_rows(part("context"), rows, width), middle, before),
        pointwise("norm", (middle,), (flat("normed2"),)),
        fused(flat("normed2"), flat("activated", 4 * width)),
        fused(flat("activated", 4 * width), after, middle),
    ]


def part_as_rows(context: TensorInfo, rows: int, width: int) -> TensorInfo:
    return dataclasses.replace(context, shape=(rows, width))


def fused_ms(encoder: Encoder) -> float:
    """Predicted time of all layers on target torch:cuda, FP8."""
    kernels = [k for index in range(encoder.layers) for k in fused_block(encoder, index)]
    gpu = gpu_for(90, "H200")
    return sum(kernel.predicted_us or 0.0 for kernel in with_predictions(kernels, gpu)) / 1e3


def predicted_ms(encoder: Encoder, dtype: str) -> float:
    """Predicted time of all layers on an H200; embedding and head, under 2 %, are left out."""
    kernels = [kernel for index in range(encoder.layers) for kernel in block(encoder, index, dtype)]
    gpu = gpu_for(90, "H200")
    return sum(kernel.predicted_us or 0.0 for kernel in with_predictions(kernels, gpu)) / 1e3


def kernel_errors(ceilings: Path) -> dict[str, list[float]]:
    """Predicted over measured, by kind of kernel, of a file of benchmarks/ceilings.py."""
    measured = json.loads(ceilings.read_text())
    gpu = gpu_for(90, "H200")
    ratios: dict[str, list[float]] = {}
    for row in measured["gemm"]:
        kernel = gemm(tensor("a", (row["m"], row["k"]), row["dtype"]), "y", row["n"])
        ratios.setdefault(f"gemm {row['dtype']}", []).append(predict_us(kernel, gpu) / row["us"])
    for row in measured["attention"]:
        q = tensor("q", (row["heads"], row["tokens"], row["head_dim"]), "fp16")
        kernel = attention(q, q, q, q)
        ratios.setdefault("attention", []).append(predict_us(kernel, gpu) / row["us"])
    for row in measured["stream"]:
        x = tensor("x", (int(row["mib"] * 2**19),), "fp16")
        is_large = row["mib"] >= 64
        kernel = pointwise("add", (x,), (x,))
        kind = "streaming, DRAM" if is_large else f"streaming, {row['kind']}"
        resident = ("x",) if row["kind"] == "same buffer" and not is_large else ()
        ratios.setdefault(kind, []).append(predict_us(kernel, gpu, resident) / row["us"])
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ceilings", nargs="?", type=Path)
    options = parser.parse_args()
    print("| CLIP encoder | FP16 predicted / measured ms | FP8 | ratio predicted / measured |")
    print("| --- | --- | --- | --- |")
    for encoder in (IMAGE, TEXT):
        fp16, fp8 = predicted_ms(encoder, "fp16"), predicted_ms(encoder, "fp8")
        print(
            f"| {encoder.name} | {fp16:.2f} / {encoder.fp16_ms} | {fp8:.2f} / {encoder.fp8_ms} "
            f"| {fp16 / fp8:.2f} / {encoder.fp16_ms / encoder.fp8_ms:.2f} |"
        )
    print("\n| target torch:cuda | FP8 predicted / measured ms | ratio to FP16 |")
    print("| --- | --- | --- |")
    for encoder in (IMAGE, TEXT):
        fp16, fused = predicted_ms(encoder, "fp16"), fused_ms(encoder)
        measured = encoder.whole_fp16_ms / encoder.whole_fused_ms
        print(
            f"| {encoder.name} | {fused:.2f} / {encoder.whole_fused_ms} "
            f"| {fp16 / fused:.2f} / {measured:.2f} |"
        )
    if options.ceilings:
        print("\n| kernels | count | predicted / measured: median | smallest | largest |")
        print("| --- | --- | --- | --- | --- |")
        for kind, ratios in kernel_errors(options.ceilings).items():
            print(
                f"| {kind} | {len(ratios)} | {statistics.median(ratios):.2f} "
                f"| {min(ratios):.2f} | {max(ratios):.2f} |"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
