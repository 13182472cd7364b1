"""What full TensorRT fuses around Q/DQ, for the planner.

Sources: TensorRT documentation, "Explicit Quantization", "Q/DQ Layer-Placement Recommendations"; the
five ResNet-18 engines on an A100; `tests/targets/test_tensorrt_fusion_target.py` repeats each entry with the
fusion model.
"""

from __future__ import annotations

from fuseq.formats import Format
from fuseq.targets.fusion import FusionRules

_INT8_ATTENTION = (
    "TensorRT's fused INT8 attention has kernels for few sizes, and none was seen on Orin; attention "
    "stays in one FP16 kernel"
)
FP8_CONV_CHANNELS = 16
"""Input channels of a group that FP8 convolutions take are multiples of this."""
_FP8_TAPS = 32
_FP8_DEPTHWISE = "TensorRT has no FP8 kernels for depthwise convolutions"
_FP8_GROUPED = "TensorRT has no optimized FP8 kernels for grouped convolutions"
_HOPPER = 90
_UNWEIGHTED = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "Add"})


def rules_for(fmt: Format, capability: int) -> FusionRules:
    """Rules of the format on one GPU.

    - Per-channel weight scales cost nothing ("per-tensor quantization for activations and per-channel
      for weights", recommendation 7); FP8 GEMMs have them from Hopper on (TensorRT 10.6 release notes).
    - Residual Add: the branch that is not fused is quantized (recommendation 4).
    - The next Q fuses into a convolution, so pairs stand on inputs alone (recommendations 1 and 2).
    - Average pooling is quantized by a pair on its input where its readers are quantized
      (recommendation 5): the ResNet-18 engine with it is the fastest. So is an Add behind an
      activation, which no convolution takes (pairs on both inputs, the figure of recommendation 5).
    - A quantized depthwise convolution fuses Relu and Clip alone
      (https://github.com/NVIDIA/TensorRT/issues/3205).
    - FP8 convolutions take channels in multiples of 16, windows of at most 32 positions, and no groups
      (TensorRT 10 release notes, "Limitations": group and depthwise convolutions have no optimized FP8
      kernels, and Q/DQ before windows such as 7x7 make it fall back to FP16 or FP32).
    """
    is_fp8 = fmt.is_float
    return FusionRules(
        activation=fmt,
        weight=fmt,
        conv_weights="channel",
        linear_weights="tensor" if is_fp8 and capability < _HOPPER else "channel",
        merges_linear=is_fp8 and capability < _HOPPER,
        residual="identity",
        pairs_on_outputs=False,
        int32_bias=False,
        attention="" if is_fp8 else _INT8_ATTENTION,
        attention_key_multiple=1,
        depthwise=_FP8_DEPTHWISE if is_fp8 else "",
        min_conv_channels=FP8_CONV_CHANNELS if is_fp8 else 1,
        data_ops={},
        refused={},
        depthwise_activations=frozenset({"Relu", "Clip"}),
        adds_behind_activation=False,
        unweighted=frozenset() if is_fp8 else _UNWEIGHTED,
        grouped=_FP8_GROUPED if is_fp8 else "",
        conv_channel_multiple=FP8_CONV_CHANNELS if is_fp8 else 1,
        max_conv_taps=_FP8_TAPS if is_fp8 else None,
    )
