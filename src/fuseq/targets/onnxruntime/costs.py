"""What ONNX Runtime's CPU operators cost in float and as integers, by kind of processor.

Measured with ONNX Runtime 1.32 on an AMD EPYC of the first generation at 2.5 GHz, one thread: the
shortest of 25 profiled runs of one operator, over 16 convolutions (1x1, 3x3, depthwise 3x3 and 5x5),
9 linear layers and the operators below on 2x96x56x56.

Whether integer products are faster depends on the processor. Zen and Zen+ multiply 128 bits of
integers a cycle: 32 u8 x s8 products take 4 cycles (vpmaddubsw and vpmaddwd, 2 each, measured), as do
32 float ones, and the convolution and linear kernels take the same time within 3 %. Processors with
256-bit multipliers (Zen 2 and later, Intel since Haswell) take 1.33 cycles against 2 (instruction
tables of Agner Fog, agner.org/optimize). One with VNNI and AMX was measured too (:data:`DOT`).
"""

from __future__ import annotations

import dataclasses

from fuseq.targets.fusion import Cost, OperatorCosts

_FREE = Cost(0.0, 0.0)

_COPIES = {
    "Reshape": _FREE,
    "Flatten": _FREE,
    "Squeeze": _FREE,
    "Unsqueeze": _FREE,
    "Transpose": Cost(0.74, 0.31),
    "Slice": Cost(0.40, 0.10),
    "Split": Cost(0.40, 0.10),
    "Gather": Cost(0.40, 0.10),
    "GatherElements": Cost(0.40, 0.10),
    "Expand": Cost(0.40, 0.10),
    "Tile": Cost(0.40, 0.10),
    "DepthToSpace": Cost(0.74, 0.40),
    "Resize": Cost(1.07, 1.77),
}

NARROW = OperatorCosts(
    conv_mac=Cost(0.045, 0.046),
    conv_output=Cost(0.55, 0.80),
    depthwise_mac=Cost(0.058, 0.134),
    depthwise_output=Cost(1.00, 0.93),
    linear_mac=Cost(0.0525, 0.0535),
    element={
        **_COPIES,
        "Add": Cost(0.20, 0.46),
        "Mul": Cost(0.54, 0.39),
        "Concat": Cost(0.77, 0.40),
        "Where": Cost(0.70, 0.60),
        "Sigmoid": Cost(0.80, 0.47),  # 1.17 alone, 0.80 as a part of x * sigmoid(x)
        "HardSwish": Cost(0.10, 1.03),
        "HardSigmoid": Cost(0.10, 0.64),
        "LeakyRelu": Cost(0.41, 0.47),
        "Softmax": Cost(1.84, 5.02),
        "MaxPool": Cost(0.17, 0.06),
        "AveragePool": Cost(0.19, 2.50),
        "GlobalAveragePool": Cost(0.17, 0.10),
        "ReduceMax": Cost(0.20, 0.20),
        "ReduceMin": Cost(0.20, 0.20),
    },
    other=Cost(0.50, 0.50),
    unfused_ns={"Add": 0.30, "HardSwish": 0.95, "HardSigmoid": 0.45},
    quantize_ns=1.00,
    dequantize_ns=0.80,
    kernel_ns=3000.0,
)
"""Measured: 128-bit integer multipliers (AMD Zen and Zen+)."""

_WIDE_FLOAT = 0.80
_WIDE_INTEGER = 0.50
"""EfficientNet-Lite0, batch 8, on two AVX2 cores without VNNI took 75 ms in float and 50 ms on
integers: 0.82 and 0.46 of what :data:`NARROW` gives for one core. The second is rounded up."""


def _scaled(cost: Cost) -> Cost:
    return Cost(cost.float_ns * _WIDE_FLOAT, cost.integer_ns * _WIDE_INTEGER)


WIDE = dataclasses.replace(
    NARROW,
    conv_mac=_scaled(NARROW.conv_mac),
    conv_output=_scaled(NARROW.conv_output),
    depthwise_mac=_scaled(NARROW.depthwise_mac),
    depthwise_output=_scaled(NARROW.depthwise_output),
    linear_mac=_scaled(NARROW.linear_mac),
)
"""Derived: 256-bit integer multipliers. Operators with products are scaled, the others, which memory
limits, are as measured."""

DOT = OperatorCosts(
    conv_mac=Cost(0.0118, 0.0033),
    conv_output=Cost(0.17, 0.21),
    depthwise_mac=Cost(0.027, 0.038),
    depthwise_output=Cost(0.13, 0.21),
    linear_mac=Cost(0.0190, 0.0035),
    element={
        **NARROW.element,
        "Add": Cost(0.10, 0.26),
        "Mul": Cost(0.56, 0.40),
        "Concat": Cost(0.40, 0.20),
        "Sigmoid": Cost(0.50, 0.33),
        "HardSwish": Cost(0.10, 0.73),
        "HardSigmoid": Cost(0.10, 0.36),
        "LeakyRelu": Cost(0.32, 0.32),
    },
    other=Cost(0.50, 0.50),
    unfused_ns={"Add": 0.30, "HardSwish": 0.95, "HardSigmoid": 0.45},
    quantize_ns=0.48,
    dequantize_ns=0.38,
    kernel_ns=3000.0,
)
"""Measured with ONNX Runtime 1.32 on an Intel Xeon of 2.1 GHz (Sapphire Rapids: AVX-512, VNNI, AMX), one
thread, shortest of 60 profiled runs: ten dense and six depthwise convolutions, seven linear layers, Add,
Mul, Sigmoid, LeakyRelu and the conversions. Softmax, pools, Where and what follows an unfused operator are
:data:`NARROW`'s."""
