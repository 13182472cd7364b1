"""NVIDIA GPUs as frozen data: what the cost model divides by, and where each number comes from.

Tensor-core peaks are dense (never the 2:4 sparsity figure) with FP32 accumulation, INT8 with INT32.
GeForce cards of Ampere, Ada and Blackwell run FP16, BF16 and FP8 with FP32 accumulation at half the
rate of the professional cards of the same chip (architecture whitepapers, appendix tables).
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
        sources: Documents that state these numbers.
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
    sources: tuple[str, ...]

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


_A100_DATASHEET = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_AMPERE_DC_WHITEPAPER = (
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/"
    "nvidia-ampere-architecture-whitepaper.pdf"
)
_GA102_WHITEPAPER = (
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
)
_ADA_WHITEPAPER = (
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/"
    "nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
)
_HOPPER_WHITEPAPER = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
_BLACKWELL_WHITEPAPER = (
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
    "nvidia-rtx-blackwell-gpu-architecture.pdf"
)
_TURING_WHITEPAPER = (
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/"
    "turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
)

# fmt: off
#     name, capability, GB/s, L2 MiB, SMs, MHz, fp16, bf16, fp8, int8, tf32, fp32 (dense), sources
GPUS: tuple[Gpu, ...] = (
    Gpu("T4", 75, 320, 4, 40, 1590, 65.0, 0.0, 0.0, 130.0, 0.0, 8.1, (_TURING_WHITEPAPER,)),
    Gpu("A100 80GB PCIe", 80, 1935, 40, 108, 1410, 312.0, 312.0, 0.0, 624.0, 156.0, 19.5,
        (_A100_DATASHEET, _AMPERE_DC_WHITEPAPER)),
    Gpu("A100 80GB SXM", 80, 2039, 40, 108, 1410, 312.0, 312.0, 0.0, 624.0, 156.0, 19.5,
        (_A100_DATASHEET, _AMPERE_DC_WHITEPAPER)),
    Gpu("A10", 86, 600, 6, 72, 1695, 125.0, 125.0, 0.0, 250.0, 62.5, 31.2, (_GA102_WHITEPAPER,)),
    Gpu("RTX 3090", 86, 936, 6, 82, 1695, 71.0, 71.0, 0.0, 284.0, 35.6, 35.6,
        (_GA102_WHITEPAPER,)),
    Gpu("L4", 89, 300, 48, 58, 2040, 121.0, 121.0, 242.5, 242.5, 60.0, 30.3, (_ADA_WHITEPAPER,)),
    Gpu("L40S", 89, 864, 96, 142, 2520, 362.05, 362.05, 733.0, 733.0, 183.0, 91.6,
        (_ADA_WHITEPAPER,)),
    Gpu("RTX 6000 Ada", 89, 960, 96, 142, 2505, 364.25, 364.25, 728.5, 728.5, 182.1, 91.1,
        (_ADA_WHITEPAPER,)),
    Gpu("RTX 4090", 89, 1008, 72, 128, 2520, 165.2, 165.2, 330.3, 660.6, 82.6, 82.6,
        (_ADA_WHITEPAPER,)),
    Gpu("H100 SXM", 90, 3350, 50, 132, 1830, 989.4, 989.4, 1978.9, 1978.9, 494.7, 66.9,
        (_HOPPER_WHITEPAPER,)),
    Gpu("H200", 90, 4800, 50, 132, 1830, 989.4, 989.4, 1978.9, 1978.9, 494.7, 66.9,
        (_HOPPER_WHITEPAPER,)),
    Gpu("RTX 5090", 120, 1792, 96, 170, 2407, 209.5, 209.5, 419.0, 838.0, 104.8, 104.8,
        (_BLACKWELL_WHITEPAPER,)),
    Gpu("RTX PRO 6000 Blackwell", 120, 1792, 128, 188, 2617, 503.8, 503.8, 1007.6, 1007.6, 251.9,
        126.0, (_BLACKWELL_WHITEPAPER,)),
    Gpu("DGX Spark GB10", 121, 273, 24, 48, 2418, 125.0, 125.0, 250.0, 250.0, 62.5, 29.7, ()),
)
# fmt: on

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


def gpu_for(capability: int, name: str | None = None) -> Gpu:
    """Return the GPU called ``name``, or the default of ``capability`` (89 means 8.9).

    Names are compared without case, spaces and hyphens.

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
    for gpu in same:
        if _key(gpu.name) == _key(wanted):
            return gpu
    names = ", ".join(gpu.name for gpu in same)
    raise OptionError(f"{wanted!r} is not a known GPU of sm{capability}; choose one of {names}.")


def _key(name: str) -> str:
    return "".join(name.lower().replace("-", "").split())
