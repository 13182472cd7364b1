"""Compare the cost model with what was published for Ada boards: GEMMs, and CLIP ViT-L/14 in TensorRT.

    python benchmarks/cost_ada.py [SYSTEMS]

SYSTEMS is ``aiconfigurator_core/systems/data`` of the unpacked wheel aiconfigurator-core 0.12.0
(NVIDIA AIConfigurator, Apache-2.0); reading it needs pyarrow. Its GEMM tables are times of
TensorRT-LLM, SGLang and vLLM on an L40S (350 W) and an RTX PRO 6000 Server (600 W); times of FP8
linear layers contain the quantize kernel, which its own table times and which is taken off.

The CLIP engines are the kernels that TensorRT-RTX 1.7 compiles, one encoder layer repeated: FP16, and
FP8 with Q/DQ on linear layers only (``exclude="node_Softmax*"``) or on attention too. Published for
TensorRT 10.16 on an RTX 6000 Ada at batch 128; where the published FP8 file has its Q/DQ is not known.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

from fuseq.targets.base import Kernel, KernelType, TensorInfo
from fuseq.targets.cost import predict_us, with_predictions
from fuseq.targets.gpus import Gpu, gpu_for

BYTES = {"fp8": 1, "fp16": 2, "bf16": 2}
SHORTEST_US = 250.0
LARGEST = 16384


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A transformer encoder and the published times, milliseconds."""

    name: str
    layers: int
    tokens: int
    width: int
    heads: int
    fp16_ms: float
    fp8_ms: float
    batch: int = 128


IMAGE = Encoder("image", 24, 257, 1024, 16, 166.2, 119.8)
TEXT = Encoder("text", 12, 77, 768, 12, 13.2, 9.1)
PLACEMENTS = ("linear layers", "linear layers and attention")


def tensor(name: str, shape: tuple[int, ...], dtype: str) -> TensorInfo:
    return TensorInfo(name, shape, dtype, math.prod(shape) * BYTES[dtype])


def gemm(inputs: tuple[TensorInfo, ...], name: str, n: int, out_dtype: str = "fp16") -> Kernel:
    m, k = inputs[0].shape
    dtype = inputs[0].dtype
    return Kernel(
        name=f"gemm {name}",
        type=KernelType.GEMM,
        compiler_type="gemm",
        inputs=inputs,
        outputs=(tensor(name, (m, n), out_dtype),),
        weights_bytes=k * n * BYTES[dtype],
        flops=2 * m * k * n,
        compute_dtype=dtype,
    )


def pointwise(inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]) -> Kernel:
    return Kernel(outputs[0].name, KernelType.ELEMENTWISE, "kgen", inputs, outputs)


def layer(encoder: Encoder, index: int, placement: str | None) -> Iterator[Kernel]:
    """Kernels of one layer; ``placement`` None is FP16."""
    rows, width = encoder.batch * encoder.tokens, encoder.width
    linear = "fp16" if placement is None else "fp8"
    inside = "fp8" if placement == PLACEMENTS[1] else "fp16"
    heads = (encoder.batch * encoder.heads, encoder.tokens, width // encoder.heads)

    def flat(name: str, n: int = width, dtype: str = "fp16") -> TensorInfo:
        return tensor(f"{name}{index}", (rows, n), dtype)

    before, branch = (tensor(f"{n}{index - 1}", (rows, width), "fp16") for n in ("middle", "mlp"))
    normed, residual = flat("normed", dtype=linear), flat("residual")
    yield pointwise((before, branch), (normed, residual))
    yield gemm((normed,), f"qkv{index}", 3 * width)
    parts = [tensor(f"{name}{index}", heads, inside) for name in "qkv"]
    for part in parts:
        yield pointwise((flat(f"slice {part.name} "),), (part,))
    context = tensor(f"context{index}", heads, inside)
    flops = 4 * encoder.tokens * math.prod(heads)
    yield Kernel(
        "mha", KernelType.ATTENTION, "kgen", tuple(parts), (context,), 0, flops, inside
    )  # fmt: skip
    attended = flat("context", dtype=inside)
    if placement == PLACEMENTS[0]:
        quantized = flat("attended", dtype="fp8")
        yield pointwise((context,), (quantized,))
        attended = quantized
    hidden = flat("normed2 ", dtype=linear)
    if placement is None:  # bias and residual are fused into the FP16 product
        yield gemm((attended, residual), f"middle{index}", width)
        yield pointwise((flat("middle"),), (hidden,))
    else:
        yield gemm((attended,), f"projected{index}", width)
        yield pointwise((flat("projected"), residual), (hidden, flat("middle")))
    yield gemm((hidden,), f"hidden{index}", 4 * width)
    activated = flat("activated", 4 * width, linear)
    yield pointwise((flat("hidden", 4 * width),), (activated,))
    yield gemm((activated,), f"mlp{index}", width)


def predicted_ms(encoder: Encoder, placement: str | None, gpu: Gpu) -> float:
    """Predicted time of all layers; embedding and head, under 1 %, are left out."""
    kernels = [k for index in range(encoder.layers) for k in layer(encoder, index, placement)]
    return sum(kernel.predicted_us or 0.0 for kernel in with_predictions(kernels, gpu)) / 1e3


@dataclasses.dataclass(frozen=True)
class Measured:
    """One published product ``(m, k) @ (k, n)``."""

    dtype: str
    m: int
    n: int
    k: int
    us: float


def predicted_gemm_us(row: Measured, gpu: Gpu) -> float:
    """Predicted time with operands from DRAM."""
    return predict_us(gemm((tensor("a", (row.m, row.k), row.dtype),), "y", row.n), gpu)


def published(systems: Path, system: str, framework: str) -> list[Measured]:
    """Products of 250 us and more, m from 1,024, n and k from 512 to 16,384."""
    from pyarrow import parquet  # noqa: PLC0415

    def newest(kind: str, table: str) -> dict[str, list[object]]:
        files = sorted((systems / system / kind / framework).glob(f"*/{table}.parquet"))
        return parquet.read_table(files[-1]).to_pydict() if files else {}  # type: ignore[no-any-return]

    quantize = newest("quantize", "scale_matrix_perf")
    quantize_us = {
        (m, k): 1e3 * ms
        for m, k, ms in zip(*(quantize.get(n, []) for n in ("m", "k", "latency")), strict=True)
    }
    table = newest("gemm", "gemm_perf")
    rows = []
    for dtype, m, n, k, ms in zip(
        *(table[name] for name in ("gemm_dtype", "m", "n", "k", "latency")), strict=True
    ):
        us = 1e3 * ms
        if dtype == "fp8":
            us -= quantize_us.get((m, k), math.inf)
        if dtype not in ("bfloat16", "fp8") or us < SHORTEST_US or m < 1024:
            continue
        if 512 <= n <= LARGEST and 512 <= k <= LARGEST:
            rows.append(Measured("bf16" if dtype == "bfloat16" else "fp8", m, n, k, us))
    return rows


def print_gemms(systems: Path) -> None:
    print("\n| GPU | framework | type | products | predicted / measured: median | 10 % | 90 % |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for system, gpu in (
        ("l40s", gpu_for(89, "L40S")),
        ("rtx_pro_6000_server", gpu_for(120)),
        ("a100_sxm", gpu_for(80, "A100 80GB SXM")),
        ("h200_sxm", gpu_for(90, "H200")),
    ):
        for framework in ("trtllm", "sglang", "vllm"):
            rows = published(systems, system, framework)
            for dtype in ("bf16", "fp8"):
                ratios = [predicted_gemm_us(r, gpu) / r.us for r in rows if r.dtype == dtype]
                if len(ratios) > 20:
                    tenths = statistics.quantiles(ratios, n=10)
                    print(
                        f"| {gpu.name} | {framework} | {dtype} | {len(ratios)} "
                        f"| {statistics.median(ratios):.2f} | {tenths[0]:.2f} | {tenths[-1]:.2f} |"
                    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("systems", nargs="?", type=Path)
    options = parser.parse_args()
    gpu = gpu_for(89, "RTX 6000 Ada")
    print("| CLIP encoder | FP8 on | FP16 ms: predicted, published | FP8 ms | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for encoder in (IMAGE, TEXT):
        for placement in PLACEMENTS:
            fp16, fp8 = (predicted_ms(encoder, choice, gpu) for choice in (None, placement))
            print(
                f"| {encoder.name} | {placement} | {fp16:.1f}, {encoder.fp16_ms} "
                f"| {fp8:.1f}, {encoder.fp8_ms} "
                f"| {fp16 / fp8:.2f}, {encoder.fp16_ms / encoder.fp8_ms:.2f} |"
            )
    if options.systems:
        print_gemms(options.systems)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
