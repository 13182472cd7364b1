"""What target ``torch:cuda`` runs in 8 bits: its own GEMM and attention kernels, nothing else."""

from __future__ import annotations

from fuseq.formats import Format
from fuseq.targets.fusion import FusionRules
from fuseq.targets.torch_cuda.emit_fused import LINEAR_MULTIPLE

_CONVOLUTION = "PyTorch has no convolution kernels for 8-bit operands"


def rules_for(fmt: Format) -> FusionRules:
    """Rules of the format.

    - GEMM weights are scaled per output channel: the epilogue multiplies by a vector for free.
    - Q, K and V products merge into one GEMM, whose epilogue quantizes the result once.
    - FP8 attention reads that result and writes the projection's FP8 input; INT8 attention stays
      FP16, in PyTorch's own kernel.
    - Tables of embeddings are stored in 8 bits, one scale a row: only rows that are read are widened.
    - Convolutions stay in float (listed with the reason).
    """
    return FusionRules(
        activation=fmt,
        weight=fmt,
        conv_weights="tensor",
        linear_weights="channel",
        merges_linear=True,
        residual="none",
        pairs_on_outputs=False,
        int32_bias=False,
        attention="" if fmt.is_float else "attention has no INT8 kernel; PyTorch's FP16 one runs",
        attention_key_multiple=1,
        depthwise=_CONVOLUTION,
        min_conv_channels=1,
        data_ops={},
        refused={"Conv": _CONVOLUTION, "ConvTranspose": _CONVOLUTION},
        linear_multiple=LINEAR_MULTIPLE,
        tables=True,
    )
