"""What ONNX Runtime's CPU provider fuses around Q/DQ, found by optimizing small graphs (1.32).

`tests/targets/test_onnxruntime_cpu.py` repeats the optimizations that the entries rest on.
The conditions common to all entries:

1. A pair is one QuantizeLinear and one DequantizeLinear with a scalar scale and a zero point given.
   A fused operator has every float input behind a DequantizeLinear, and its output (after at most
   one Relu or Clip) is read by QuantizeLinear alone: **all** readers of a quantized tensor read it
   quantized. One float reader more, and the operator before it runs in float with extra kernels.
2. Relu and Clip vanish when the output's range lies inside theirs (:func:`fuseq.calibration.limits.scale_within`), else they
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
