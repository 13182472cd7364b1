"""The GPU table agrees with itself and with how the chips are built."""

from __future__ import annotations

import pytest

from fuseq.errors import OptionError
from fuseq.targets.gpus import ALIASES, DEFAULTS, GPUS, Gpu, gpu_for

FP16_FLOPS_PER_CLOCK_SM = {
    # Whitepapers: Turing and the 8.6, 8.9 and 12.x chips 1024, GA100 2048, GH100 4096; GeForce half.
    # L40 is stated at half of L40S by its own datasheet.
    75: 1024,
    80: 2048,
    86: 1024,
    89: 1024,
    90: 4096,
    120: 1024,
    121: 1024,
}
HALF_RATE = {"RTX 3090", "RTX 4090", "RTX 5090", "L40"}
FP32_LANES = {75: 64, 80: 64, 86: 128, 89: 128, 90: 128, 120: 128, 121: 128}


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_peaks_follow_from_sms_and_clock(gpu: Gpu) -> None:
    rate = FP16_FLOPS_PER_CLOCK_SM[gpu.capability] / (2 if gpu.name in HALF_RATE else 1)
    at_boost = gpu.sm_count * gpu.boost_mhz / 1e6
    assert gpu.fp16_tflops == pytest.approx(rate * at_boost, rel=0.015)
    # Hopper states FP32 at a higher clock (1980 and 1755 MHz) than its tensor cores.
    fp32_tolerance = 0.09 if gpu.capability == 90 else 0.01
    lanes = FP32_LANES[gpu.capability]
    assert gpu.fp32_tflops == pytest.approx(2 * lanes * at_boost, rel=fp32_tolerance)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_narrower_types_are_multiples_of_fp16(gpu: Gpu) -> None:
    int8_ratio = 4 if gpu.name in HALF_RATE - {"L40"} else 2
    assert gpu.int8_tops == pytest.approx(int8_ratio * gpu.fp16_tflops, rel=0.015)
    assert gpu.bf16_tflops == (0.0 if gpu.capability == 75 else gpu.fp16_tflops)
    has_fp8 = gpu.capability >= 89
    assert gpu.fp8_tflops == pytest.approx(2 * gpu.fp16_tflops * has_fp8, rel=0.015)
    assert gpu.tf32_tflops == pytest.approx(
        0.0 if gpu.capability == 75 else gpu.fp16_tflops / 2, rel=0.015
    )
    assert gpu.sources


def test_every_capability_has_a_default_and_names_are_unique() -> None:
    assert {gpu.capability for gpu in GPUS} == set(DEFAULTS)
    assert {capability: gpu_for(capability).name for capability in DEFAULTS} == DEFAULTS
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)
    assert set(ALIASES.values()) <= {gpu.name for gpu in GPUS}


@pytest.mark.parametrize(
    ("capability", "name", "expected"),
    [
        (89, "rtx-4090", "RTX 4090"),
        (89, "NVIDIA GeForce RTX 4090", "RTX 4090"),
        (89, "NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        (80, "NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        (80, "NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        (90, "NVIDIA H100 80GB HBM3", "H100 SXM"),
        (121, "NVIDIA GB10", "DGX Spark GB10"),
    ],
)
def test_names_of_users_and_drivers(capability: int, name: str, expected: str) -> None:
    assert gpu_for(capability, name).name == expected


def test_unknown_name_lists_the_allowed_ones() -> None:
    with pytest.raises(OptionError) as error:
        gpu_for(120, "RTX 4090")
    assert str(error.value) == (
        "'RTX 4090' is not a known GPU of sm120; choose one of RTX 5090, RTX PRO 6000 Blackwell."
    )


def test_unknown_capability_lists_the_allowed_ones() -> None:
    with pytest.raises(OptionError) as error:
        gpu_for(70)
    assert str(error.value) == (
        "no GPU of compute capability 70 is in the cost model's table; it has "
        "sm75, sm80, sm86, sm89, sm90, sm120, sm121."
    )


def test_types_without_tensor_cores_run_as_the_next_wider() -> None:
    a100, t4 = gpu_for(80), gpu_for(75)
    assert a100.peak_tflops("fp8") == 312.0
    assert a100.peak_tflops("int4") == 312.0
    assert a100.peak_tflops("fp32") == 19.5
    assert a100.peak_tflops("tf32") == 156.0
    assert t4.peak_tflops("bf16") == 8.1
    assert t4.peak_tflops("tf32") == 8.1
    # DP4A: 108 SMs x 64 instructions x 4 products x 2 x 1.41 GHz
    assert a100.peak_tflops("int8x4") == pytest.approx(77.967, abs=1e-3)
    assert a100.l2_bytes == 41_943_040


def test_every_board_has_a_power_limit_but_the_one_that_shares_it() -> None:
    without = [gpu.name for gpu in GPUS if not 70 <= gpu.board_w <= 700]
    assert without == ["DGX Spark GB10"]
    assert {gpu.name: gpu.board_w for gpu in GPUS if gpu.capability == 89} == {
        "L4": 72,
        "L40": 300,
        "L40S": 350,
        "RTX 6000 Ada": 300,
        "RTX 4090": 450,
    }
    assert {gpu.name for gpu in GPUS if gpu.dram_efficiency < 0.9} == {
        "T4",
        "A10",
        "L4",
        "L40",
        "L40S",
        "RTX 6000 Ada",
    }
