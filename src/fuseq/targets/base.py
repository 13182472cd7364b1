"""What every target gives: an Engine, which is a list of Kernels. Only this package knows compilers."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import onnx_ir as ir

from fuseq.errors import OptionError
from fuseq.formats import Format
from fuseq.targets.fusion import FusionRules


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One tensor that a kernel reads or writes.

    ``dtype`` is a short lower-case word: fp32, fp16, bf16, fp8, int8, uint8, int4, int32, int64, bool.
    ``shape`` is the logical shape, ``nbytes`` what is really stored (padding included).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class KernelType(enum.Enum):
    """What a kernel does, the same words for every compiler."""

    CONVOLUTION = "convolution"
    GEMM = "gemm"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    POOL = "pool"
    RESIZE = "resize"
    QUANTIZE = "quantize"
    DEQUANTIZE = "dequantize"
    CAST = "cast"
    MOVE = "move"
    OTHER = "other"


ALONE_TYPES = frozenset({KernelType.QUANTIZE, KernelType.DEQUANTIZE, KernelType.CAST})


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One launch of an engine.

    Attributes:
        name: The compiler's own name.
        type: What it does.
        compiler_type: The compiler's own word for its kind (``kgen``, ``correlation``, ``Conv`` ...).
        inputs: Activations it reads.
        outputs: Activations it writes.
        weights_bytes: Bytes of constants it reads.
        flops: Multiply and add counted apart (2 x MACs); 0 for kernels without products.
        compute_dtype: Type of the products' operands (fp8, int8, fp16 ...), "" if there is none.
        nodes: Names of the ONNX nodes it came from.
        source_lines: Lines of the user's model code, where the ONNX file carries them.
        predicted_us: Time by the cost model; a prediction, never a measurement.
        measured_us: Time by a profiler, if one ran.
    """

    name: str
    type: KernelType
    compiler_type: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    weights_bytes: int = 0
    flops: int = 0
    compute_dtype: str = ""
    nodes: tuple[str, ...] = ()
    source_lines: tuple[str, ...] = ()
    predicted_us: float | None = None
    measured_us: float | None = None

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations read and written."""
        return sum(t.nbytes for t in self.inputs) + sum(t.nbytes for t in self.outputs)

    @property
    def is_alone(self) -> bool:
        """It does nothing but quantize, dequantize or change dtype."""
        return self.type in ALONE_TYPES


@dataclasses.dataclass(frozen=True)
class Engine:
    """What a target's compiler made of a model."""

    target: str
    kernels: tuple[Kernel, ...]
    plan_bytes: bytes | None = None
    engine_bytes: int = 0
    compile_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def activation_bytes(self) -> int:
        """Sum over kernels of activations read and written."""
        return sum(k.activation_bytes for k in self.kernels)

    @property
    def weights_bytes(self) -> int:
        """Sum over kernels of constants read."""
        return sum(k.weights_bytes for k in self.kernels)

    @property
    def predicted_us(self) -> float:
        """Sum of the kernels' predicted times; a prediction."""
        return sum(k.predicted_us or 0.0 for k in self.kernels)

    @property
    def measured_us(self) -> float | None:
        """Sum of the kernels' measured times; None where none was measured."""
        times = [k.measured_us for k in self.kernels if k.measured_us is not None]
        return sum(times) if times else None

    @property
    def alone(self) -> tuple[Kernel, ...]:
        """Kernels that do nothing but quantize, dequantize or change dtype."""
        return tuple(k for k in self.kernels if k.is_alone)


@dataclasses.dataclass(frozen=True)
class ShapeProfile:
    """Static shapes of every input for one compile; ``minimum`` and ``maximum`` default to ``optimum``."""

    optimum: Mapping[str, tuple[int, ...]]
    minimum: Mapping[str, tuple[int, ...]] | None = None
    maximum: Mapping[str, tuple[int, ...]] | None = None


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of one model among several that took turns on this machine.

    Attributes:
        name: As the caller called it.
        median_ms: Median over rounds, in milliseconds.
        best_ms: Shortest run.
        rounds_ms: Every run, in order.
        speedup: How many times faster than the first model: median over rounds of the first
            model's time divided by this one's.
    """

    name: str
    median_ms: float
    best_ms: float
    rounds_ms: tuple[float, ...]
    speedup: float

    @property
    def rounds(self) -> int:
        """Number of timed runs."""
        return len(self.rounds_ms)


@dataclasses.dataclass(frozen=True)
class Race:
    """Models that took turns, the one that speedups refer to first; ``how`` they were timed."""

    times: tuple[Timing, ...]
    how: str


@runtime_checkable
class MeasuringTarget(Protocol):
    """A target that runs on this machine: plans are judged by timed runs, not by predictions."""

    @property
    def machine(self) -> str:
        """The processor, in words."""
        ...

    def measure(self, models: Mapping[str, ir.Model], profile: ShapeProfile) -> Race:
        """Time ``models``, taking turns; speedups refer to the first.

        Raises:
            TargetError: The compiler refused a model.
        """
        ...


@runtime_checkable
class NativeTarget(Protocol):
    """A target whose compiler is no Python: it runs on one core, and this process on the others."""

    @property
    def compiler_library(self) -> str:
        """What is called, in words."""
        ...


class Target(Protocol):
    """A compiler and a device."""

    @property
    def name(self) -> str:
        """As users write it: ``tensorrt-rtx:sm89``."""
        ...

    @property
    def precision(self) -> str:
        """Type of what stays float unless the user says otherwise: fp16 or fp32."""
        ...

    @property
    def predicts(self) -> bool:
        """Kernels of its engines carry predicted times, so that engines can be compared."""
        ...

    def rules(self, user_format: str) -> FusionRules:
        """What its kernels do with ``--format``.

        Raises:
            TargetError: The device has no kernels for the format; the message says which has.
        """
        ...

    def storage_formats(self, user_format: str) -> tuple[Format, Format]:
        """Activation and weight format that this target's kernels want for ``--format``.

        Raises:
            TargetError: The device has no kernels for the format; the message says which has.
        """
        ...

    def compile(self, model: ir.Model, profile: ShapeProfile, *, keep_plan: bool = False) -> Engine:
        """Compile for ``profile``; kernels carry predicted times.

        Raises:
            TargetError: The compiler is missing or refused the model, with its own words.
        """
        ...

    def missing(self) -> str | None:
        """None when the target works here, else the sentence that says what to install."""
        ...


def split_target(text: str) -> tuple[str, str]:
    """Split ``compiler:device``; both parts are lower case.

    Raises:
        OptionError: The text has no compiler or no device.
    """
    compiler, colon, device = text.strip().lower().partition(":")
    if not colon or not compiler or not device:
        raise OptionError(
            f"--target {text!r} is not compiler:device; write for example "
            "tensorrt-rtx:sm89 or onnxruntime:cpu."
        )
    return compiler, device


__all__: Sequence[str] = (
    "ALONE_TYPES",
    "Engine",
    "Kernel",
    "KernelType",
    "MeasuringTarget",
    "NativeTarget",
    "Race",
    "ShapeProfile",
    "Target",
    "TensorInfo",
    "Timing",
    "split_target",
)
