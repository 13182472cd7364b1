"""What a target's kernels can do with a format, as frozen data that the planner reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from fuseq.formats import Format

Granularity = Literal["tensor", "channel"]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Nanoseconds of one core for one unit of work: in float and as integers."""

    float_ns: float
    integer_ns: float


@dataclasses.dataclass(frozen=True)
class OperatorCosts:
    """What operators cost on one core, to tell which islands of integer operators pay.

    Attributes:
        conv_mac: One multiply-add of a dense convolution.
        conv_output: One output element of it, besides its multiply-adds.
        depthwise_mac: The same for depthwise and grouped convolutions.
        depthwise_output: The same.
        linear_mac: One multiply-add of a Gemm or MatMul with constant weights.
        element: Other operators by name, for one element: of the output, of the input of a global
            pool, of each window of a pool. An operator that is not listed costs :attr:`other`.
        other: One element of an operator without an entry.
        unfused_ns: What an element of a float operator costs more where the operator before it runs
            on integers, and so cannot absorb it, by name.
        quantize_ns: One element from float to integer, with its change of layout.
        dequantize_ns: One element from integer to float, with its change of layout.
        kernel_ns: One kernel, however small.
        measured: What single operators took on this machine, by node name; instead of the above.
    """

    conv_mac: Cost
    conv_output: Cost
    depthwise_mac: Cost
    depthwise_output: Cost
    linear_mac: Cost
    element: Mapping[str, Cost]
    other: Cost
    unfused_ns: Mapping[str, float]
    quantize_ns: float
    dequantize_ns: float
    kernel_ns: float
    measured: Mapping[str, Cost] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class FusionRules:
    """One target and format.

    Attributes:
        activation: Storage format of activations.
        weight: Storage format of weights.
        conv_weights: Granularity of convolution weight scales that the kernels fuse best.
        linear_weights: The same for GEMM weights.
        merges_linear: GEMMs that read one tensor become one kernel, and weight scales that differ
            cost an extra kernel: they share one per-tensor scale.
        residual: Which inputs of a residual Add are quantized: none, the branch that is not fused
            into the convolution (``identity``), or both.
        pairs_on_outputs: A kernel is low-precision only if its output is quantized too.
        int32_bias: Biases are stored as INT32 with scale input x weight.
        attention: "" when attention runs in the format with pairs on Q, K, V and the softmax
            output, else the reason why not.
        attention_key_multiple: The fused kernel needs a number of keys divisible by this.
        depthwise: "" when depthwise convolutions run in the format, else the reason why not.
        grouped: The same for convolutions of more than one group that are not depthwise.
        min_conv_channels: Input channels below which no kernel of the format exists.
        conv_channel_multiple: Input channels of a group must be divisible by this.
        max_conv_taps: Positions of a convolution's window (9 for 3x3) that kernels of the format
            take at most; None: any number.
        linear_multiple: Rows and columns of a GEMM weight must be divisible by this.
        tables: Tables of embeddings are stored in the weight format, one scale a row.
        wide_scales: Q/DQ beside FP16 tensors may have FP32 scales (opset 23), as compiled engines show.
        data_ops: Operators that run on quantized data between pairs, and whether input and output
            share one scale (``same``) or have their own (``own``).
        refused: Operators with weights that never run in the format: the reason.
        costs: What operators cost where ``pairs_on_outputs``; None plans all that can run.
        depthwise_activations: Activations that a depthwise convolution of the format fuses; behind
            another one it stays float. None: it fuses all that other convolutions fuse.
        adds_behind_activation: A residual Add also fuses into a convolution behind its activation.
        unweighted: Operators without weights that run in the format in a kernel of their own, when
            all their inputs have pairs and all readers of their output read it quantized.
    """

    activation: Format
    weight: Format
    conv_weights: Granularity
    linear_weights: Granularity
    merges_linear: bool
    residual: Literal["none", "identity", "both"]
    pairs_on_outputs: bool
    int32_bias: bool
    attention: str
    attention_key_multiple: int
    depthwise: str
    min_conv_channels: int
    data_ops: Mapping[str, Literal["same", "own"]]
    refused: Mapping[str, str]
    costs: OperatorCosts | None = None
    depthwise_activations: frozenset[str] | None = None
    adds_behind_activation: bool = True
    unweighted: frozenset[str] = frozenset()
    grouped: str = ""
    conv_channel_multiple: int = 1
    max_conv_taps: int | None = None
    linear_multiple: int = 1
    tables: bool = False
    wide_scales: bool = False
