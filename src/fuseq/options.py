"""What a user decides when a model is quantized or planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from fuseq.errors import OptionError
from fuseq.formats import USER_FORMATS
from fuseq.placement.plan import MIN_GAIN_PERCENT, Policy

METHODS = ("max", "percentile", "entropy", "mse")
ROUNDINGS = ("nearest", "gptq")
PRECISIONS = ("fp16", "bf16", "fp32")


@dataclasses.dataclass(frozen=True)
class QuantizeOptions:
    """Options of ``fuseq quantize`` and ``fuseq plan``.

    Attributes:
        format: ``int8`` or ``fp8``.
        target: ``compiler:device``.
        precision: Type of what stays float; None is the target's own (fp16 on GPUs, fp32 on CPUs).
        policy: ``pays``: quantize where the compiled engine predicts a gain; ``full``: everything
            that the target runs in the format.
        min_gain: Under ``pays``, the least gain in percent for which a region, and the model, is
            quantized: predicted, or measured where the target runs here. What gains less stays float.
        method: How ranges become scales: max, percentile (``percentile:99.9`` names it), entropy
            or mse.
        exclude: Globs of node, weight, module or operator names that stay float.
        include: If given, only what matches is quantized.
        keep_first: Leave the first layers in float.
        keep_last: Leave the last layers in float.
        batch: Batch size that the engine is compiled for where the model's batch is dynamic.
        shapes: Static shape by input name, where more than the batch is dynamic.
        io_types: ``keep`` the types of inputs and outputs, or ``convert`` them to ``precision``.
        gpu: GPU that predictions assume; None is the capability's default.
        preset: How images become inputs; None guesses from the input's shape.
        limit: Use at most this many calibration samples.
        seed: Seed of random calibration data.
        rounding: ``nearest``, or ``gptq``: second-order rounding of weights.
        bias_correction: Undo the mean error of each layer's outputs in its bias.
        equalize: Equalize the channels between layers before anything is planned: weights change,
            outputs stay.
        smooth: Strength, 0 to 1, with which ranges move from normalizations into the linear layers
            behind them; None moves nothing.
    """

    format: str = "int8"
    target: str = "tensorrt-rtx:sm89"
    precision: str | None = None
    policy: Policy = "pays"
    min_gain: float = MIN_GAIN_PERCENT
    method: str = "max"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    keep_first: bool = False
    keep_last: bool = False
    batch: int = 8
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    io_types: Literal["keep", "convert"] = "keep"
    gpu: str | None = None
    preset: str | None = None
    limit: int | None = None
    seed: int = 0
    rounding: str = "nearest"
    bias_correction: bool = False
    equalize: bool = False
    smooth: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that no command accepts.

        Raises:
            OptionError: Names the option, what was found, and what is allowed.
        """
        _one_of("--format", self.format, USER_FORMATS)
        _one_of("--policy", self.policy, ("pays", "full"))
        _one_of("--method", self.method.partition(":")[0], METHODS)
        _one_of("--rounding", self.rounding, ROUNDINGS)
        _one_of("--io-types", self.io_types, ("keep", "convert"))
        if self.precision is not None:
            _one_of("--precision", self.precision, PRECISIONS)
        if not 0 <= self.min_gain < 100:
            raise OptionError(f"--min-gain {self.min_gain} is no gain in percent; give 0 to 99.")
        if self.smooth is not None and not 0 <= self.smooth <= 1:
            raise OptionError(f"--smooth {self.smooth} is no strength; give 0 to 1, usually 0.5.")
        if self.batch < 1:
            raise OptionError(f"--batch {self.batch} is not a batch size; give 1 or more.")
        if self.limit is not None and self.limit < 1:
            raise OptionError(f"--limit {self.limit} leaves no calibration data; give 1 or more.")


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{option} {value!r} is unknown; choose one of {', '.join(allowed)}.")
