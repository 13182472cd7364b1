"""How long a kernel's energy takes at the power that a board allows.

A GPU lowers its clock until the board stays within its power limit. Then time is energy over power:
``(flops x energy of one + bytes x energy of one) / (power limit - constant power)`` (Choi, Bedard,
Fowler, Vuduc, "A Roofline Model of Energy", IPDPS 2013, and Choi et al., "Algorithmic Time, Energy,
and Power on Candidate HPC Compute Building Blocks", IPDPS 2014, equation 3: the third roof).

Energies are stated for chips whose boards were seen to be limited, and only for those:

1. FP16, FP8 and bytes: chosen, least mean relative error of the whole cost model, on the GEMMs of
   250 us and more that NVIDIA published for an L40S at 350 W (AIConfigurator 0.12.0, package
   ``aiconfigurator-core``, ``systems/data/l40s/gemm/trtllm``: m from 1,024, n and k from 512 to
   16,384; FP8 without its quantize kernels).
2. INT8: FP8's, whose operands are as wide. Not measured.
3. FP32 on CUDA cores: 280 W over the L40S's 46.9 TFLOPS (zzc0721/torch-performance-test-data); it
   gives 60 and 80 for the RTX 4090 and the RTX PRO 6000, which reach 54 to 58 and 74 to 77 there.
   TF32: twice FP16, whose operands are half as wide. Not measured.

docs/cost-model.md has the comparison.
"""

from __future__ import annotations

import dataclasses

from fuseq.targets.base import Kernel
from fuseq.targets.gpus import Gpu


@dataclasses.dataclass(frozen=True)
class Energy:
    """Picojoules of one floating-point or integer operation (a multiply-add is two), and of one byte.

    Attributes:
        eight_bit_pj: FP8 and INT8 on tensor cores.
        half_pj: FP16 and BF16 on tensor cores.
        tf32_pj: TF32 on tensor cores.
        fp32_pj: FP32 on CUDA cores.
        byte_pj: A byte that a kernel reads or writes, wherever it comes from.
    """

    eight_bit_pj: float
    half_pj: float
    tf32_pj: float
    fp32_pj: float
    byte_pj: float

    def of_dtype(self, dtype: str) -> float:
        """Energy of one operation on operands of ``dtype``, picojoules."""
        if dtype in ("fp8", "int8", "uint8"):
            return self.eight_bit_pj
        if dtype in ("fp16", "bf16", "int4"):
            return self.half_pj
        return self.tf32_pj if dtype == "tf32" else self.fp32_pj


_FOUR_NANOMETRES = Energy(eight_bit_pj=0.69, half_pj=1.18, tf32_pj=2.36, fp32_pj=6.0, byte_pj=180.0)

ENERGIES: dict[int, Energy] = {89: _FOUR_NANOMETRES, 120: _FOUR_NANOMETRES}
"""By compute capability: Ada and the Blackwell of graphics cards, one process and one kind of SM."""

CONSTANT_POWER_PART = 0.2
"""Part of the board's limit that it draws whatever runs (leakage, fans, memory at rest). Stated, not
measured; energies were chosen with it, so that it cancels for boards of one chip."""


def power_us(kernel: Kernel, gpu: Gpu) -> float:
    """Least time of a kernel with products within the board's power, microseconds.

    0.0 for a chip without stated energies, and for kernels without products: moving bytes alone does
    not reach the limit.
    """
    energy = ENERGIES.get(gpu.capability)
    if energy is None or not gpu.board_w or not kernel.flops:
        return 0.0
    moved_bytes = kernel.activation_bytes + kernel.weights_bytes
    picojoules = kernel.flops * energy.of_dtype(kernel.compute_dtype) + moved_bytes * energy.byte_pj
    return picojoules / (1e6 * gpu.board_w * (1 - CONSTANT_POWER_PART))
