"""What ONNX Runtime's CPU provider fuses around Q/DQ, found by optimizing small graphs (1.32).

`tests/targets/test_onnxruntime_cpu.py` repeats the optimizations that the entries rest on.
The conditions common to all entries:

1. A pair is one QuantizeLinear and one DequantizeLinear with a scalar scale and a zero point given.
   A fused operator has every float input behind a DequantizeLinear, and its output (after at most
   one Relu or Clip) is read by QuantizeLinear alone: **all** readers of a quantized tensor read it
   quantized. One float reader more, and the operator before it runs in float with extra kernels.
2. Relu and Clip vanish when the output's range lies inside theirs (:func:`uint8_within`), else they
   keep the operator before them in float.
3. A bias is INT32 with exactly the scale (input scale x weight scale), or the operator stays float.
4. The weight of a Gemm has its zero point given (all 0), or the Gemm stays float; convolutions and
   MatMul take it with and without.
5. A Conv or Gemm between quantized tensors cannot be kept in float by leaving its weight alone:
   ONNX Runtime then quantizes that weight itself, per tensor and with 8 bits.
6. Operators that copy values need the same scale and zero point on both sides.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fuseq.formats import Format
from fuseq.targets.fusion import FusionRules, OperatorCosts

_CONV_TRANSPOSE = (
    "ONNX Runtime's CPU provider has no integer ConvTranspose "
    "(optimized: three DequantizeLinear, a float ConvTranspose, QuantizeLinear)"
)
_ATTENTION = (
    "ONNX Runtime's CPU provider runs attention's products as integer kernels, but their operands "
    "are quantized at run time by kernels of their own"
)

DATA_OPS_SAME_SCALE: tuple[str, ...] = (
    "MaxPool",
    "Reshape",
    "Transpose",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Split",
    "Gather",
    "GatherElements",
    "Expand",
    "Tile",
    "DepthToSpace",
    "Resize",  # mode nearest only
    "ReduceMax",
    "ReduceMin",
)
"""Run on the stored integers when the pairs before and behind have one scale and zero point."""

DATA_OPS_OWN_SCALE: tuple[str, ...] = (
    "Add",
    "Mul",
    "Concat",
    "Where",
    "AveragePool",
    "GlobalAveragePool",
    "Sigmoid",
    "LeakyRelu",
    "Softmax",
)
"""Have an integer kernel (QLinearAdd ...) between any two scales: every input and the output need
their pair. Constant operands of Add and Mul are stored as uint8 with a pair of their own."""

FLOAT_ONLY: tuple[str, ...] = (
    "ConvTranspose",
    "ReduceMean",
    "GlobalMaxPool",
    "Pad",
    "Sub",
    "Div",
    "Max",
    "Min",
    "Sum",
    "PRelu",
    "Elu",
    "Tanh",
    "Gelu",
    "Erf",
    "HardSigmoid",
    "HardSwish",
    "Softplus",
    "Mish",
    "LayerNormalization",
)
"""Have no integer kernel: a pair around one costs a DequantizeLinear and a QuantizeLinear kernel.
ReduceMean over the image axes becomes one when it is written as GlobalAveragePool."""

WRITTEN_AS_INTEGERS: tuple[str, ...] = ("HardSwish", "HardSigmoid")
"""Float only as they are, but inserting Q/DQ writes them as a depthwise convolution with a Clip (and a
Mul), which are integer (:mod:`fuseq.passes.integer_activations`)."""

ABSORBED: tuple[str, ...] = ("Relu", "Clip")
"""Vanish into the QuantizeLinear behind them (condition 2 above), behind any fused operator."""


def rules_for(
    activation: Format, weight: Format, costs: OperatorCosts | None = None
) -> FusionRules:
    """Rules of the integer kernels; ``activation`` is uint8, ``weight`` int8 or int7.

    - Per-channel weight scales cost nothing: QLinearConv, QGemm, QLinearMatMul and
      MatMulIntegerToFloat take one a channel.
    - Depthwise, grouped, dilated, 1-D and 3-D convolutions are QLinearConv as well.
    - A convolution without a pair on its output stays float (optimized: three DequantizeLinear and
      Conv); Gemm and MatMul need none and then write float.
    - Products of two activations and Softmax have integer kernels, which attention does not repay.

    ``costs`` tell which of them pay (:mod:`fuseq.targets.onnxruntime.costs`); None plans all.
    """
    data_ops: dict[str, Literal["same", "own"]] = {}
    data_ops.update(dict.fromkeys(DATA_OPS_SAME_SCALE, "same"))
    data_ops.update(dict.fromkeys(DATA_OPS_OWN_SCALE, "own"))
    data_ops.update(dict.fromkeys(WRITTEN_AS_INTEGERS, "own"))
    return FusionRules(
        activation=activation,
        weight=weight,
        conv_weights="channel",
        linear_weights="channel",
        merges_linear=False,
        residual="both",
        pairs_on_outputs=True,
        int32_bias=True,
        attention=_ATTENTION,
        attention_key_multiple=1,
        depthwise="",
        min_conv_channels=1,
        data_ops=data_ops,
        refused={"ConvTranspose": _CONV_TRANSPOSE},
        costs=costs,
    )


_MIN_SCALE = 1e-8
"""For a tensor that is constant zero: any positive scale stores it exactly."""


def uint8_within(
    minimum: float, maximum: float, low: float | None, high: float | None
) -> tuple[np.float32, int]:
    """Scale and zero point of a calibrated range that make a Clip to [low, high] redundant.

    ONNX Runtime removes the Clip before a QuantizeLinear when the ends of the stored integers lie
    inside the Clip's, computed in float32 (its ClipQuantFusion): ``scale * (0 - zp) >= low`` and
    ``scale * (255 - zp) <= high``. For Relu (low 0, high None) it asks for zero point 0.

    Args:
        minimum: Calibrated minimum; 0 if it is positive.
        maximum: Calibrated maximum; 0 if it is negative.
        low: Lower end of the Clip, at most 0; None for none.
        high: Upper end of the Clip, at least 0; None for none.

    Returns:
        The scale, rounded down where rounding up would leave the Clip's range, and the zero point.
    """
    bottom = max(min(minimum, 0.0), -np.inf if low is None else low)
    top = min(max(maximum, 0.0), np.inf if high is None else high)
    scale = max((top - bottom) / 255, _MIN_SCALE)
    zero_point = round(-bottom / scale)
    if low is not None and zero_point > 0:
        scale = min(scale, -low / zero_point)
    if high is not None and zero_point < 255:
        scale = min(scale, high / (255 - zero_point))
    rounded = np.float32(scale)
    while _leaves(rounded, zero_point, low, high):
        rounded = np.nextafter(rounded, np.float32(0))
    return rounded, zero_point


def _leaves(scale: np.float32, zero_point: int, low: float | None, high: float | None) -> bool:
    below = low is not None and scale * np.float32(-zero_point) < np.float32(low)
    above = high is not None and scale * np.float32(255 - zero_point) > np.float32(high)
    return bool(scale > 0 and (below or above))
