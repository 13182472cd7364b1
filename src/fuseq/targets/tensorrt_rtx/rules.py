"""What TensorRT-RTX 1.7.1 fuses around Q/DQ, found by compiling small graphs for sm80, sm89, sm120.

Each entry names the compile run that shows it; `tests/targets/test_rtx_rules.py` repeats the runs.
"""

from __future__ import annotations

from fuseq.formats import Format
from fuseq.targets.fusion import FusionRules

_CONV_TRANSPOSE = (
    "TensorRT-RTX runs ConvTranspose in FP16 and dequantizes its input and weights first "
    "(compiled: deconv with Half operands behind two dequantize kernels)"
)


def rules_for(fmt: Format) -> FusionRules:
    """Rules of the format; INT8 and FP8 differ in residual branches and in narrow inputs.

    - Per-tensor convolution weights: scale, bias and ReLU fuse into the convolution, which writes
      FP16; per-channel ones make it write FP32 with a kernel behind it.
    - Per-channel GEMM weights fold into the elementwise kernel that adds the bias.
    - Attention with all its pairs is one kernel in FP8, and in INT8 where Q, K and V are cut from one
      quantized tensor; whether it fused is seen in the compiled engine (`placement/pays.py`).
    - Q, K and V products merge into one GEMM; differing weight scales cost a kernel over its output.
    - A residual Add fuses into an INT8 convolution with its FP16 identity branch as it is; a pair on
      that branch would run as a kernel of its own. Behind an FP8 convolution the Add is a kernel
      that reads and writes FP8 when both its branch and its result are quantized.
    - An FP8 convolution over 3 channels is dequantized and computed in FP16 (compiled: Half stem).
    """
    is_fp8 = fmt.is_float
    return FusionRules(
        activation=fmt,
        weight=fmt,
        conv_weights="tensor",
        linear_weights="channel",
        merges_linear=True,
        residual="identity" if is_fp8 else "none",
        pairs_on_outputs=False,
        int32_bias=False,
        attention="",
        attention_key_multiple=1,
        depthwise=(
            "a quantized depthwise convolution is padded from 1 to 4 channels a group "
            "(compiled: Int8[8,384,56,56] for 96 channels, engine seven times larger)"
        ),
        min_conv_channels=4 if is_fp8 else 1,
        data_ops={},
        refused={"ConvTranspose": _CONV_TRANSPOSE},
        wide_scales=True,
    )
