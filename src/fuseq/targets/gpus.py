"""NVIDIA GPUs as frozen data: what the cost model divides by, and where each number comes from.

Tensor-core peaks are dense (never the 2:4 sparsity figure) with FP32 accumulation, INT8 with INT32.
GeForce cards of Ampere, Ada and Blackwell run FP16, BF16 and FP8 with FP32 accumulation at half the
rate of the professional cards of the same chip (architecture whitepapers, appendix tables); full
TensorRT may accumulate FP16 in FP16 there, which is twice as fast.
"""

from __future__ import annotations

import dataclasses

from fuseq.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as its maker describes it.

    Attributes:
        name: How users write it, for example ``RTX 4090``.
        capability: CUDA compute capability, 89 means 8.9.
        bandwidth_gbs: Memory bandwidth, 1e9 bytes a second.
        l2_mib: L2 cache, MiB.
        sm_count: Streaming multiprocessors.
        boost_mhz: Boost clock the peaks are stated at, MHz.
        fp16_tflops: Tensor-core peak, FP16 in, FP32 accumulated, 1e12 FLOP/s.
        bf16_tflops: The same for BF16; 0 where tensor cores lack it.
        fp8_tflops: The same for FP8; 0 where tensor cores lack it.
        int8_tops: The same for INT8, INT32 accumulated.
        tf32_tflops: The same for TF32; 0 where tensor cores lack it.
        fp32_tflops: CUDA cores, FP32 fused multiply-add.
        board_w: Power limit of the board, watts; 0 where it is shared with a processor.
        sources: Documents that state these numbers.
        dram_efficiency: Part of the bandwidth that streaming reaches.
    """

    name: str
    capability: int
    bandwidth_gbs: float
    l2_mib: float
    sm_count: int
    boost_mhz: int
    fp16_tflops: float
    bf16_tflops: float
    fp8_tflops: float
    int8_tops: float
    tf32_tflops: float
    fp32_tflops: float
    board_w: int
    sources: tuple[str, ...]
    dram_efficiency: float = 0.9

    @property
    def l2_bytes(self) -> int:
        """L2 cache in bytes."""
        return int(self.l2_mib * 2**20)

    @property
    def sm_clocks_per_us(self) -> float:
        """Clocks of all SMs together in a microsecond."""
        return float(self.sm_count * self.boost_mhz)

    def peak_tflops(self, dtype: str) -> float:
        """Peak of products whose operands are ``dtype``: the words of TensorInfo, ``tf32``, ``int8x4``.

        A type without tensor-core support runs as the next wider type that has it.
        """
        tensor = {
            "fp8": self.fp8_tflops or self.fp16_tflops,
            "int8": self.int8_tops,
            "uint8": self.int8_tops,
            "int4": self.fp16_tflops,  # weight-only: dequantized to FP16 before the product
            "fp16": self.fp16_tflops,
            "bf16": self.bf16_tflops or self.fp32_tflops,
            "tf32": self.tf32_tflops or self.fp32_tflops,
            # DP4A on CUDA cores: 64 instructions a clock and SM, four products each (CUDA C++
            # Programming Guide, "Arithmetic Instructions", 7.5 to 12.x)
            "int8x4": 64 * 8 * self.sm_clocks_per_us / 1e6,
        }
        return tensor.get(dtype, self.fp32_tflops)


_INLINE_ECC = 0.79
"""GDDR6 of boards that leave the factory with ECC on, whose check bits take bandwidth: 677 of 864 GB/s
in the quantize kernels that NVIDIA published for an L40S (AIConfigurator 0.12.0, ``quantize``), 469 of
600 on an A10, 240 of 320 on a T4 (chsasank/device-benchmarks; RTX 3090 and 4090, without, 0.89 and
0.90)."""

_WEB = "https://www.nvidia.com/en-us/"
_IMAGES = "https://images.nvidia.com/aem-dam/"
_TURING = _IMAGES + (
    "en-zz/Solutions/design-visualization/technologies/turing-architecture/"
    "NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
_AMPERE = _IMAGES + "en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
_GA102 = (
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
)
_ADA = _IMAGES + "Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture, whitepaper, tables 2 and 3"
_BLACKWELL = _IMAGES + "Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_PRO_BLACKWELL = "NVIDIA RTX Blackwell PRO GPU Architecture, whitepaper, appendix A"
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_SPARK = (
    "https://docs.nvidia.com/dgx/dgx-spark/hardware.html (bandwidth, cores, FP4)",
    "Hot Chips 2025, A. Skende, GB10 (31 TFLOPS FP32, whence the clock)",
    "https://github.com/huggingface/kernels/pull/283 (48 SMs, 24 MB L2, as the driver reports)",
    "FP8 and FP16 are a half and a quarter of the dense FP4 peak",
)

# fmt: off
#       name, capability, GB/s, L2 MiB, SMs, MHz, fp16, bf16, fp8, int8, tf32, fp32, W, sources
GPUS: tuple[Gpu, ...] = (
    Gpu("T4", 75, 320, 4, 40, 1590, 65.0, 0.0, 0.0, 130.0, 0.0, 8.1, 70,
        (_TURING, _WEB + "data-center/tesla-t4/"), _INLINE_ECC),
    Gpu("TITAN RTX", 75, 672, 6, 72, 1770, 130.5, 0.0, 0.0, 261.0, 0.0, 16.3, 280,
        (_TURING, _WEB + "titan/titan-rtx/")),
    Gpu("A100 80GB PCIe", 80, 1935, 40, 108, 1410, 312.0, 312.0, 0.0, 624.0, 156.0, 19.5, 300,
        (_A100, _AMPERE)),
    Gpu("A100 80GB SXM", 80, 2039, 40, 108, 1410, 312.0, 312.0, 0.0, 624.0, 156.0, 19.5, 400,
        (_A100, _AMPERE)),
    Gpu("A800 80GB PCIe", 80, 1935, 40, 108, 1410, 312.0, 312.0, 0.0, 624.0, 156.0, 19.5, 300,
        ("NVIDIA A800 80GB PCIe product brief: A100's chip with slower NVLink", _AMPERE)),
    Gpu("A30", 80, 933, 24, 56, 1440, 165.0, 165.0, 0.0, 330.0, 82.0, 10.3, 165,
        (_WEB + "data-center/products/a30-gpu/", _AMPERE)),
    Gpu("A10", 86, 600, 6, 72, 1695, 125.0, 125.0, 0.0, 250.0, 62.5, 31.2, 150,
        (_WEB + "data-center/products/a10-gpu/", _GA102), _INLINE_ECC),
    Gpu("RTX A6000", 86, 768, 6, 84, 1800, 154.8, 154.8, 0.0, 309.7, 77.4, 38.7, 300, (_GA102,)),
    Gpu("RTX 3090", 86, 936, 6, 82, 1695, 71.0, 71.0, 0.0, 284.0, 35.6, 35.6, 350, (_GA102,)),
    Gpu("L4", 89, 300, 48, 58, 2040, 121.0, 121.0, 242.5, 242.5, 60.0, 30.3, 72,
        (_WEB + "data-center/l4/", _ADA), _INLINE_ECC),
    Gpu("L40", 89, 864, 96, 142, 2490, 181.05, 181.05, 362.0, 362.0, 90.5, 90.5, 300,
        (_WEB + "data-center/l40/", _ADA), _INLINE_ECC),
    Gpu("L40S", 89, 864, 96, 142, 2520, 362.05, 362.05, 733.0, 733.0, 183.0, 91.6, 350,
        (_WEB + "data-center/l40s/", _ADA), _INLINE_ECC),
    Gpu("RTX 6000 Ada", 89, 960, 96, 142, 2505, 364.2, 364.2, 728.5, 728.5, 182.1, 91.1, 300,
        (_WEB + "design-visualization/rtx-6000/", _ADA), _INLINE_ECC),
    Gpu("RTX 4090", 89, 1008, 72, 128, 2520, 165.2, 165.2, 330.3, 660.6, 82.6, 82.6, 450, (_ADA,)),
    Gpu("H100 SXM", 90, 3350, 50, 132, 1830, 989.4, 989.4, 1978.9, 1978.9, 494.7, 66.9, 700,
        (_HOPPER, _WEB + "data-center/h100/")),
    Gpu("H100 PCIe", 90, 2000, 50, 114, 1620, 756.4, 756.4, 1512.9, 1512.9, 378.2, 51.2, 350,
        (_HOPPER, _WEB + "data-center/h100/")),
    Gpu("H200", 90, 4800, 50, 132, 1830, 989.4, 989.4, 1978.9, 1978.9, 494.7, 66.9, 700,
        (_HOPPER, _WEB + "data-center/h200/")),
    Gpu("RTX 5090", 120, 1792, 96, 170, 2407, 209.5, 209.5, 419.0, 838.0, 104.8, 104.8, 575,
        (_BLACKWELL,)),
    Gpu("RTX PRO 6000 Blackwell", 120, 1792, 128, 188, 2617, 503.8, 503.8, 1007.6, 1007.6, 251.9,
        126.0, 600, (_PRO_BLACKWELL,)),
    Gpu("DGX Spark GB10", 121, 273, 24, 48, 2520, 125.0, 125.0, 250.0, 250.0, 62.5, 31.0, 0, _SPARK),
)
# fmt: on
"""Peaks in 1e12 operations a second, dense, in the order of the columns above."""

DEFAULTS: dict[int, str] = {
    75: "T4",
    80: "A100 80GB PCIe",
    86: "A10",
    89: "RTX 6000 Ada",
    90: "H100 SXM",
    120: "RTX PRO 6000 Blackwell",
    121: "DGX Spark GB10",
}
"""The GPU that stands for a compute capability when the user names none."""


ALIASES: dict[str, str] = {
    "A100-SXM4-80GB": "A100 80GB SXM",
    "GB10": "DGX Spark GB10",
    "H100 80GB HBM3": "H100 SXM",
    "RTX 6000 Ada Generation": "RTX 6000 Ada",
    "RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell",
    "RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell",
    "Tesla T4": "T4",
}
"""What the driver calls a GPU (without ``NVIDIA`` and ``GeForce``) where the table has another name."""


def gpu_for(capability: int, name: str | None = None) -> Gpu:
    """Return the GPU called ``name``, or the default of ``capability`` (89 means 8.9).

    Names are compared without case, spaces, hyphens and the words NVIDIA and GeForce, so the name
    that the driver reports is understood.

    Raises:
        OptionError: No GPU of that capability is in the table, or none of that name.
    """
    same = tuple(gpu for gpu in GPUS if gpu.capability == capability)
    if not same:
        known = ", ".join(f"sm{number}" for number in sorted(DEFAULTS))
        raise OptionError(
            f"no GPU of compute capability {capability} is in the cost model's table; "
            f"it has {known}."
        )
    wanted = DEFAULTS[capability] if name is None else name
    key = _key(wanted)
    for alias, known_name in ALIASES.items():
        if key == _key(alias):
            key = _key(known_name)
    for gpu in same:
        if _key(gpu.name) == key:
            return gpu
    names = ", ".join(gpu.name for gpu in same)
    raise OptionError(f"{wanted!r} is not a known GPU of sm{capability}; choose one of {names}.")


def _key(name: str) -> str:
    words = name.lower().replace("-", " ").split()
    return "".join(word for word in words if word not in ("nvidia", "geforce"))
