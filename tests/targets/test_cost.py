"""The cost model by hand, and against measured engines."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseq.targets.base import Kernel, KernelType, TensorInfo
from fuseq.targets.cost import CONSTANTS, Product, as_product, predict_us, with_predictions
from fuseq.targets.energy import power_us
from fuseq.targets.gpus import GPUS, Gpu, gpu_for

ROOT = Path(__file__).resolve().parents[2]
TREX = Path(
    os.environ.get("FUSEQ_TREX_DATA", ROOT.parent / "shared" / "data" / "trt-engine-explorer")
)
A100 = gpu_for(80)
BYTES = {"fp32": 4, "fp16": 2, "int8": 1, "fp8": 1}

# Rates of the A100 that the hand computations use, per microsecond.
DRAM = 1935e3 * 0.9
CLOCKS = 108 * 1410
L2 = 28 * CLOCKS
LAUNCH = 2.5
RAMP = 2.5


def tensor(name: str, shape: tuple[int, ...], dtype: str = "fp16") -> TensorInfo:
    size = BYTES[dtype]
    for length in shape:
        size *= length
    return TensorInfo(name, shape, dtype, size)


def pointwise(source: TensorInfo, result: TensorInfo, word: str = "kgen") -> Kernel:
    return Kernel("k", KernelType.ELEMENTWISE, word, (source,), (result,))


def gemm(m: int, k: int, n: int, dtype: str = "fp16") -> Kernel:
    return Kernel(
        name="gemm",
        type=KernelType.GEMM,
        compiler_type="gemm",
        inputs=(tensor("a", (m, k), dtype),),
        outputs=(tensor("y", (m, n)),),
        weights_bytes=k * n * BYTES[dtype],
        flops=2 * m * n * k,
        compute_dtype=dtype,
    )


def convolution(data: TensorInfo, result: TensorInfo, k: int, dtype: str) -> Kernel:
    """``k``: products a value of the output, channels of a group times taps."""
    flops = 2 * k
    for length in result.shape:
        flops *= length
    return Kernel(
        "conv", KernelType.CONVOLUTION, "correlation", (data,), (result,), 0, flops, dtype
    )


def test_streaming_from_memory() -> None:
    # 2 x 100 MB, neither fits half of L2 (20.97 MB)
    kernel = pointwise(tensor("x", (50_000_000,)), tensor("y", (50_000_000,)))
    assert predict_us(kernel, A100) == pytest.approx(LAUNCH + 200e6 / DRAM)
    assert predict_us(kernel, A100) == pytest.approx(117.343, abs=1e-3)


def test_small_tensors_are_read_from_l2_when_resident_and_written_to_it() -> None:
    kernel = pointwise(tensor("x", (2_000_000,)), tensor("y", (2_000_000,)))
    assert predict_us(kernel, A100) == pytest.approx(LAUNCH + 4e6 / DRAM)
    assert predict_us(kernel, A100, {"x"}) == pytest.approx(LAUNCH + 8e6 / L2)
    assert predict_us(kernel, A100, {"other"}) == predict_us(kernel, A100)


def test_slower_streams() -> None:
    x, y = tensor("x", (2_000_000,)), tensor("y", (2_000_000,))
    reformat = pointwise(x, y, "Reformat")
    assert predict_us(reformat, A100, {"x"}) == pytest.approx(LAUNCH + 8e6 / (6 * CLOCKS))
    pool = dataclasses.replace(pointwise(x, y), type=KernelType.POOL)
    assert predict_us(pool, A100, {"x"}) == pytest.approx(LAUNCH + 8e6 / (10 * CLOCKS))
    narrowed = pointwise(x, tensor("y", (2_000_000,), "fp8"))
    assert predict_us(narrowed, A100, {"x"}) == pytest.approx(LAUNCH + 2e6 / (3.6 * CLOCKS))


def test_weights_are_read_from_memory() -> None:
    kernel = dataclasses.replace(
        pointwise(tensor("x", (8,)), tensor("y", (8,))), weights_bytes=10**7
    )
    assert predict_us(kernel, A100, {"x"}) == pytest.approx(LAUNCH + 1e7 / DRAM)


def test_one_full_wave_of_tiles() -> None:
    # 13824 = 108 x 128 rows: one 128x128 tile for each SM
    products = 2 * 128 * 128 * 1024 / (312e6 / 108 * 0.85)
    memory = (13824 * 1024 * 2 + 1024 * 128 * 2) / DRAM  # the output stays in L2
    expected = LAUNCH + RAMP + max(memory, products) + min(memory, products)
    assert predict_us(gemm(13824, 1024, 128), A100) == pytest.approx(expected)
    assert expected == pytest.approx(35.07, abs=0.01)


def test_a_started_wave_costs_a_whole_one() -> None:
    # 110 tiles of 128x128 on 108 SMs would take two waves; 220 of 64x128 take three of half the time
    tile = 2 * 128 * 128 * 8192 / (312e6 / 108 * 0.85)
    for rows, tiles, waves in ((13824, 1, 1), (14040, 1.5, 3)):
        memory = (rows * 8192 * 2 + 8192 * 128 * 2 + rows * 128 * 2) / L2
        assert predict_us(gemm(rows, 8192, 128), A100, {"a"}) == pytest.approx(
            LAUNCH + RAMP + tiles * tile + memory / waves
        )


def test_operands_of_small_tiles_come_through_l2() -> None:
    # n = 32: tiles of 128x32 and less; (128 + 32) x k x 2 bytes for each of 1024 tiles
    kernel = gemm(131072, 4096, 32)
    operands = 1024 * (128 + 32) * 4096 * 2 / L2
    memory = (131072 * 4096 * 2 + 4096 * 32 * 2) / DRAM
    waves = 10  # 1024 tiles on 108 SMs
    assert predict_us(kernel, A100) == pytest.approx(LAUNCH + RAMP + memory + operands / waves)


def test_eight_bits_halve_products_on_a_gpu_that_has_them() -> None:
    for gpu, dtype in ((gpu_for(89, "RTX 4090"), "fp8"), (A100, "int8")):
        wide = predict_us(gemm(32768, 4096, 4096), gpu, {"a"})
        narrow = predict_us(gemm(32768, 4096, 4096, dtype), gpu, {"a"})
        assert 1.8 < wide / narrow < 2.0


def test_fp8_on_a_gpu_without_it_costs_what_fp16_costs() -> None:
    fp8 = dataclasses.replace(gemm(32768, 4096, 4096), compute_dtype="fp8")
    tiles = 32768 // 256 * 4096 // 128
    products = -(-tiles // 108) * 2 * 256 * 128 * 4096 / (312e6 / 108 * 0.85)
    assert predict_us(fp8, A100, {"a"}) > products


def test_depthwise_runs_on_cuda_cores() -> None:
    x, y = tensor("x", (8, 64, 56, 56)), tensor("y", (8, 64, 56, 56))
    kernel = convolution(x, y, 9, "fp16")
    assert kernel.flops == 28_901_376
    assert predict_us(kernel, A100, {"x"}) == pytest.approx(LAUNCH + 28_901_376 / (19.5e6 * 0.75))
    dense = convolution(x, y, 64 * 9, "fp16")
    assert predict_us(dense, A100, {"x"}) == pytest.approx(
        LAUNCH
        + RAMP
        + 98 * (256 + 64) * 576 * 2 / L2  # operands of 98 tiles, one wave
        + 2 * x.nbytes / L2
    )


def test_few_channels_are_padded_to_one_access() -> None:
    x, y = tensor("x", (32, 3, 224, 224)), tensor("y", (32, 64, 112, 112))
    assert as_product(convolution(x, y, 147, "fp16")) == Product(401408.0, 64, 147 * 8 / 3)
    assert as_product(convolution(x, y, 147, "int8")) == Product(401408.0, 64, 147 * 16 / 3)
    assert as_product(convolution(x, y, 147, "int8x4")) == Product(401408.0, 64, 147 * 4 / 3)
    wide = tensor("x", (32, 16, 112, 112))
    assert as_product(convolution(wide, y, 144, "int8")) == Product(401408.0, 64, 144.0)
    dp4a = convolution(x, y, 147, "int8x4")
    dp4a_peak = 64 * 8 * CLOCKS * 0.75
    memory = y.nbytes / DRAM + x.nbytes / DRAM
    assert predict_us(dp4a, A100) == pytest.approx(
        LAUNCH + max(memory, dp4a.flops * 4 / 3 / dp4a_peak)
    )


def test_pooling_fused_behind_a_convolution_keeps_its_products() -> None:
    x, y = tensor("x", (32, 3, 224, 224), "int8"), tensor("y", (32, 64, 56, 56), "int8")
    kernel = dataclasses.replace(
        convolution(x, y, 4 * 147, "int8"), compiler_type="ConvActPool", weights_bytes=64 * 147
    )
    product = as_product(kernel)
    assert product is not None
    assert product.m == pytest.approx(32 * 112 * 112)
    assert product.k == pytest.approx(147 * 16 / 3)


def test_attention_pads_to_tiles_and_pays_an_exponential_for_each_score() -> None:
    shape = (2048, 257, 64)
    kernel = Kernel(
        name="mha",
        type=KernelType.ATTENTION,
        compiler_type="kgen",
        inputs=(tensor("q", shape), tensor("k", (2048, 64, 257)), tensor("v", shape)),
        outputs=(tensor("o", shape),),
        flops=4 * 2048 * 257 * 257 * 64,
        compute_dtype="fp16",
    )
    scores = 2048 * 384 * 384
    products = 4 * scores * 64 / (312e6 * 0.85) + scores / (16 * CLOCKS)
    waves = -(-2048 * 3 // 108)
    memory = 4 * 2048 * 257 * 64 * 2 / DRAM
    assert predict_us(kernel, A100) == pytest.approx(
        LAUNCH + RAMP + max(products, memory) + min(products, memory) / waves
    )
    packed = dataclasses.replace(kernel, inputs=(tensor("qkv", (32896, 3072)),))
    assert predict_us(packed, A100) < predict_us(kernel, A100)


def test_a_board_that_is_power_limited_takes_its_energy_over_its_power() -> None:
    # RTX 6000 Ada: 300 W, of which a fifth is drawn whatever runs; 1.18 and 0.69 pJ an operation,
    # 180 pJ a byte
    gpu = gpu_for(89, "RTX 6000 Ada")
    kernel = gemm(32768, 4096, 4096)
    assert kernel.flops == 2**40
    moved = 32768 * 4096 * 2 * 2 + 4096 * 4096 * 2
    limited = (2**40 * 1.18e-12 + moved * 180e-12) / 240 * 1e6
    assert predict_us(kernel, gpu) == pytest.approx(LAUNCH + limited)
    assert limited == pytest.approx(5833.75, abs=0.01)
    fp8 = gemm(32768, 4096, 4096, "fp8")
    narrow = 2**40 * 0.69e-12 + (32768 * 4096 * 3 + 4096 * 4096) * 180e-12
    assert predict_us(fp8, gpu) == pytest.approx(LAUNCH + narrow / 240 * 1e6)
    # 450 W are enough for the half rate of GeForce; nothing is stated for the A100's chip
    assert power_us(kernel, gpu_for(89, "RTX 4090")) < 2**40 / 165.2e6
    assert power_us(kernel, A100) == 0.0
    # bytes alone do not reach the limit
    assert power_us(pointwise(tensor("x", (2**28,)), tensor("y", (2**28,))), gpu) == 0.0


def test_boards_with_ecc_in_their_gddr6_stream_more_slowly() -> None:
    kernel = pointwise(tensor("x", (2**28,)), tensor("y", (2**28,)))
    moved = 4 * 2**28
    for name, reached in (("L40S", 864e3 * 0.79), ("RTX 4090", 1008e3 * 0.9)):
        assert predict_us(kernel, gpu_for(89, name)) == pytest.approx(LAUNCH + moved / reached)


def test_kernels_without_shapes_are_still_predicted() -> None:
    bare = Kernel("name only", KernelType.OTHER, "", (), ())
    assert predict_us(bare, A100) == LAUNCH
    unknown = Kernel("gemm", KernelType.GEMM, "gemm", (), (), 0, 195_000_000, "fp16")
    assert predict_us(unknown, A100) == pytest.approx(LAUNCH + 195 / (19.5 * 0.75))


def test_a_tensor_stays_in_l2_until_half_of_it_was_touched_since() -> None:
    def engine(between: int) -> tuple[Kernel, ...]:
        a, b = tensor("a", (2_000_000,)), tensor("b", (2_000_000,))
        other = pointwise(tensor("u", (between // 2,)), tensor("v", (8,)))
        return (pointwise(tensor("x", (2_000_000,)), a), other, pointwise(a, b))

    room = int(0.5 * A100.l2_bytes)
    near = with_predictions(engine(room - 4_000_000 - 64), A100)[2]
    far = with_predictions(engine(room), A100)[2]
    assert near.predicted_us == pytest.approx(LAUNCH + 8e6 / L2)
    assert far.predicted_us == pytest.approx(LAUNCH + 4e6 / DRAM)


def test_predictions_change_nothing_else() -> None:
    kernel = dataclasses.replace(gemm(512, 512, 512), measured_us=7.0, nodes=("n",))
    (predicted,) = with_predictions([kernel], A100)
    assert dataclasses.replace(predicted, predicted_us=None) == kernel


@given(
    gpu=st.sampled_from(GPUS),
    m=st.integers(1, 10**6),
    k=st.integers(1, 10**5),
    n=st.integers(1, 10**5),
    dtype=st.sampled_from(["fp32", "fp16", "int8", "fp8"]),
)
def test_no_product_is_faster_than_the_datasheet(
    gpu: Gpu, m: int, k: int, n: int, dtype: str
) -> None:
    kernel = gemm(m, k, n, dtype)
    time_us = predict_us(kernel, gpu, {"a"})
    assert time_us >= LAUNCH + kernel.flops / (gpu.peak_tflops(dtype) * 1e6)
    assert time_us >= LAUNCH + kernel.weights_bytes / (gpu.bandwidth_gbs * 1e3)


# Against measurements. Data: NVIDIA/TensorRT, tools/experimental/trt-engine-explorer, folder
# examples/pytorch/resnet/A100 (ResNet-18, batch 32), as docs/cost-model.md says.


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


needs_trex = pytest.mark.skipif(not TREX.is_dir(), reason=f"no TREx engines at {TREX}")


@needs_trex
def test_a100_resnet18_layers_and_totals() -> None:
    comparison = benchmark("cost_a100")
    engines = {engine.name: engine for engine in comparison.load(TREX)}
    assert len(engines) == 5
    for name, engine in engines.items():
        result = comparison.fit(engine)
        assert result.median_error < 0.15, name
        assert result.spearman > 0.85, name
        assert result.total_us == pytest.approx(engine.total_us, rel=0.10), name


@needs_trex
def test_a100_resnet18_order_and_ratios_to_fp16() -> None:
    comparison = benchmark("cost_a100")
    engines = {
        engine.name.removeprefix("resnet18-a100-"): engine for engine in comparison.load(TREX)
    }
    predicted = {name: comparison.fit(engine).total_us for name, engine in engines.items()}
    measured = {name: engine.total_us for name, engine in engines.items()}
    names = ["fp32", "qat", "fp16", "qat-residual", "qat-residual-qgap"]
    assert sorted(measured, key=lambda name: -measured[name]) == names
    assert sorted(predicted, key=lambda name: -predicted[name]) == names
    for name in names:
        assert predicted[name] / predicted["fp16"] == pytest.approx(
            measured[name] / measured["fp16"], rel=0.15
        )


@needs_trex
def test_a100_resnet18_held_out_engine() -> None:
    comparison = benchmark("cost_a100")
    engines = comparison.load(TREX)
    held = next(engine for engine in engines if engine.name.endswith("qat-residual-qgap"))
    others = [engine for engine in engines if engine is not held]
    middle = {name: sum(ends) / 2 for name, ends in comparison.SEARCHED.items()}
    far = dataclasses.replace(CONSTANTS, **middle)
    result = comparison.fit(held, comparison.choose(others, far, steps=150, seed=0))
    assert result.median_error < 0.35
    assert result.total_us == pytest.approx(held.total_us, rel=0.20)


def test_h200_clip_in_pytorch() -> None:
    comparison = benchmark("cost_h200")
    for encoder in (comparison.IMAGE, comparison.TEXT):
        fp16 = comparison.predicted_ms(encoder, "fp16")
        fp8 = comparison.predicted_ms(encoder, "fp8")
        assert fp16 == pytest.approx(encoder.fp16_ms, rel=0.15), encoder.name
        assert fp8 == pytest.approx(encoder.fp8_ms, rel=0.15), encoder.name
        assert fp16 / fp8 == pytest.approx(encoder.fp16_ms / encoder.fp8_ms, rel=0.10)


# NVIDIA AIConfigurator 0.12.0 (Apache-2.0), aiconfigurator-core, systems/data: TensorRT-LLM 1.3.0rc20,
# microseconds; FP8 without its quantize kernel. Constants were chosen on the L40S's table, nothing on
# the RTX PRO 6000's.
L40S_GEMMS = [
    ("bf16", 32768, 4096, 1024, 1761.1),
    ("bf16", 32768, 1024, 4096, 1359.0),
    ("bf16", 32768, 3072, 1024, 1236.4),
    ("bf16", 32768, 3072, 768, 831.2),
    ("bf16", 8192, 8192, 8192, 4938.6),
    ("fp8", 32768, 4096, 1024, 928.0),
    ("fp8", 32768, 3072, 1024, 715.0),
    ("fp8", 32768, 3072, 768, 557.0),
]


def test_l40s_products_as_published() -> None:
    comparison = benchmark("cost_ada")
    gpu = gpu_for(89, "L40S")
    ratios = [
        comparison.predicted_gemm_us(comparison.Measured(*row), gpu) / row[-1] for row in L40S_GEMMS
    ]
    assert min(ratios) > 0.75
    assert max(ratios) < 1.10
    unlimited = dataclasses.replace(gpu, board_w=0)
    without = [
        comparison.predicted_gemm_us(comparison.Measured(*row), unlimited) / row[-1]
        for row in L40S_GEMMS
    ]
    assert max(without) < 0.75  # what the power limit explains


def test_clip_on_an_rtx_6000_ada_as_published() -> None:
    """TensorRT 10.16, batch 128; Q/DQ on linear layers (docs/cost-model.md says why)."""
    comparison = benchmark("cost_ada")
    gpu = gpu_for(89, "RTX 6000 Ada")
    for encoder in (comparison.IMAGE, comparison.TEXT):
        fp16 = comparison.predicted_ms(encoder, None, gpu)
        fp8 = comparison.predicted_ms(encoder, comparison.PLACEMENTS[0], gpu)
        assert fp16 == pytest.approx(encoder.fp16_ms, rel=0.12), encoder.name
        assert fp8 == pytest.approx(encoder.fp8_ms, rel=0.12), encoder.name
        assert fp16 / fp8 == pytest.approx(encoder.fp16_ms / encoder.fp8_ms, rel=0.10), encoder.name
        # attention in FP8 as well is another, faster engine
        assert comparison.predicted_ms(encoder, comparison.PLACEMENTS[1], gpu) < fp8
