"""Target ``onnxruntime:cpu``: ONNX Runtime's CPU provider, on the machine that fuseq runs on.

Compiling is optimizing and running once under ONNX Runtime's profiler: the kernels are the nodes of
its optimized graph, with the shapes that really ran and times that were measured here. Nothing is
predicted.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from fuseq.errors import OptionError, TargetError
from fuseq.formats import FP8, INT7, INT8, UINT8, Format, format_named
from fuseq.model import input_specs
from fuseq.targets.base import Engine, Race, ShapeProfile, Timing
from fuseq.targets.fusion import FusionRules, OperatorCosts
from fuseq.targets.onnxruntime.costs import DOT, NARROW, WIDE
from fuseq.targets.onnxruntime.kernels import kernels_of
from fuseq.targets.onnxruntime.neighbours import Snapshot, others_share
from fuseq.targets.onnxruntime.provenance import mark, unmarked
from fuseq.targets.onnxruntime.session import (
    Feeds,
    ModelLike,
    open_session,
    profile_model,
    run_session,
    session_options,
    usable_cpus,
)
from fuseq.targets.onnxruntime.timing import time_models
from fuseq.targets.onnxruntime_rules import rules_for

DOT_PRODUCT_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Linux's names of the x86 features whose u8 x s8 products add up in 32 bits."""

MEASURED_SECONDS = 3.0
"""Time for judging plans, all candidates together."""

BUSY_SHARE = 0.1
"""Share of the processors' time that other programs may use while plans are timed."""

MEASURED_ROUNDS = (3, 25)
"""Fewest and most rounds: large models get three, small ones do not need the time."""

_X86 = frozenset({"x86_64", "amd64", "i386", "i686"})


@dataclasses.dataclass(frozen=True)
class Cpu:
    """The processor.

    Attributes:
        machine: As :func:`platform.machine` says.
        flags: As Linux lists them; empty where it does not.
        vendor: ``AuthenticAMD``, ``GenuineIntel`` ..., "" where it is not known.
        family: The vendor's family number.
        model: The vendor's model number within the family.
        title: The name that the vendor gave it, "" where it is not known.
    """

    machine: str
    flags: frozenset[str]
    vendor: str = ""
    family: int = 0
    model: int = 0
    title: str = ""

    @staticmethod
    def here() -> Cpu:
        """This machine's; no flags where the system has no ``/proc/cpuinfo``."""
        file = Path("/proc/cpuinfo")
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        pairs = (line.partition(":") for line in text.splitlines())
        fields: dict[str, str] = {}
        for key, _, value in pairs:
            fields.setdefault(key.strip(), value.strip())
        return Cpu(
            machine=platform.machine().lower(),
            flags=frozenset(fields.get("flags", "").split()),
            vendor=fields.get("vendor_id", ""),
            family=_number(fields.get("cpu family", "")),
            model=_number(fields.get("model", "")),
            title=fields.get("model name", ""),
        )

    @property
    def has_narrow_multipliers(self) -> bool:
        """It multiplies 128 bits of integers a cycle: AMD Zen and Zen+ (family 17h, models below 30h).

        On such a processor integer products are no faster than float ones
        (:mod:`fuseq.targets.onnxruntime.costs`).
        """
        return self.vendor == "AuthenticAMD" and self.family == 0x17 and self.model < 0x30

    @property
    def has_dot_products(self) -> bool:
        """It adds u8 x s8 products in 32 bits (VNNI, AMX)."""
        return self.machine in _X86 and bool(self.flags & DOT_PRODUCT_FLAGS)

    @property
    def saturates(self) -> bool:
        """Two u8 x s8 products are added in 16 bits (vpmaddubsw), which 8-bit weights overflow.

        True on x86 without VNNI or AMX, and where the flags cannot be read (ONNX Runtime
        documentation, "Quantize ONNX models", sections on ``reduce_range`` and on AVX2). Arm's
        kernels widen before they add.
        """
        return self.machine in _X86 and not self.has_dot_products


@dataclasses.dataclass(frozen=True)
class OnnxRuntimeCpu:
    """ONNX Runtime's CPU provider.

    Attributes:
        threads: Threads of one operator; all usable processors by default.
        profiled_runs: Runs behind :attr:`Kernel.measured_us`, which is the shortest: what disturbs
            a run only lengthens it.
        cpu: The processor whose kernels choose the formats.
    """

    threads: int | None = None
    profiled_runs: int = 5
    cpu: Cpu = dataclasses.field(default_factory=Cpu.here)

    @staticmethod
    def parse(device: str) -> OnnxRuntimeCpu:
        """Make the target from ``cpu``.

        Raises:
            OptionError: Another device.
        """
        if device != "cpu":
            raise OptionError(
                f"--target onnxruntime:{device}: only ONNX Runtime's CPU provider is a target; "
                "write onnxruntime:cpu."
            )
        return OnnxRuntimeCpu()

    @property
    def name(self) -> str:
        """As users write it."""
        return "onnxruntime:cpu"

    @property
    def precision(self) -> str:
        """Float kernels of the CPU provider are FP32."""
        return "fp32"

    @property
    def predicts(self) -> bool:
        """Its kernels are measured here, not predicted."""
        return False

    @property
    def machine(self) -> str:
        """The processor, and its integer products if they are slow."""
        kind = self.cpu.title or self.cpu.machine
        if self.cpu.has_narrow_multipliers:
            kind += " (128-bit integer multipliers)"
        elif self.cpu.saturates:
            kind += " (no VNNI)"
        return kind

    def rules(self, user_format: str) -> FusionRules:
        """What the CPU provider fuses around Q/DQ.

        Raises:
            TargetError: FP8, for which it has no kernels.
        """
        activation, weight = self.storage_formats(user_format)
        return rules_for(activation, weight, self.costs)

    @property
    def costs(self) -> OperatorCosts:
        """The table of the kind of processor that this one is."""
        if self.cpu.has_narrow_multipliers:
            return NARROW
        return DOT if self.cpu.has_dot_products else WIDE

    def storage_formats(self, user_format: str) -> tuple[Format, Format]:
        """Activations uint8 with a zero point, weights int8; 7 bits of it where products saturate.

        Raises:
            OptionError: No such format.
            TargetError: FP8, for which the CPU provider has no kernels.
        """
        if format_named(user_format) is FP8:
            raise TargetError(
                "onnxruntime:cpu has no FP8 kernels: it would convert to FP32 before every operator "
                "and be slower than float. Use --format int8, or --target tensorrt-rtx:sm89 for fp8."
            )
        return UINT8, INT7 if self.cpu.saturates else INT8

    def compile(
        self,
        model: ir.Model,
        profile: ShapeProfile,
        *,
        keep_plan: bool = False,
        feeds: Feeds | None = None,
    ) -> Engine:
        """Optimize and profile; every kernel carries its measured time, none a predicted one.

        Args:
            model: Any model that ONNX Runtime runs; it is not changed.
            profile: Static shapes of the inputs; only ``optimum`` is used.
            keep_plan: Keep the optimized ONNX file, without its large weights.
            feeds: Inputs to run with; by default uniform random floats, zeros for other types.

        Raises:
            TargetError: ONNX Runtime refused the model or could not run it.
        """
        marked = mark(model)
        _fix_shapes(marked.model, profile.optimum)
        inputs = feeds if feeds is not None else example_feeds(model, profile)
        threads = self.threads or len(usable_cpus())
        result = profile_model(
            marked.model, inputs, threads=threads, runs=max(self.profiled_runs, 1)
        )
        plan = unmarked(result.graph, marked) if keep_plan else None
        renamed_bytes = len(plan) - len(result.file_bytes) if plan is not None else 0
        return Engine(
            target=self.name,
            kernels=kernels_of(result, marked),
            plan_bytes=plan,
            engine_bytes=result.total_bytes + renamed_bytes,
            compile_seconds=result.seconds,
            notes=self._notes(threads),
        )

    def run(self, model: ModelLike, feeds: Feeds) -> dict[str, np.ndarray]:
        """Run once, optimized; outputs by name.

        Raises:
            TargetError: ONNX Runtime refused the model or its inputs.
        """
        options = session_options(self.threads or len(usable_cpus()))
        return run_session(open_session(model, options), feeds)

    def time(
        self,
        models: Mapping[str, ModelLike],
        feeds: Feeds,
        *,
        seconds: float = 10.0,
        warmup: int = 3,
    ) -> tuple[Timing, ...]:
        """Time several models on the same inputs, taking turns (:func:`time_models`).

        Raises:
            OptionError: No model, or more threads than processors.
            TargetError: ONNX Runtime refused a model or its inputs.
        """
        return time_models(models, feeds, seconds=seconds, warmup=warmup, threads=self.threads)

    def measure(self, models: Mapping[str, ir.Model], profile: ShapeProfile) -> Race:
        """Time models on example inputs, taking turns, for :data:`MEASURED_SECONDS` or so.

        Other programs disturb a run of several threads the more, the longer its threads wait for
        each other. Where they use more than :data:`BUSY_SHARE` of the processors, what is compared
        is the processor time of one thread.

        Raises:
            TargetError: ONNX Runtime refused a model.
        """
        fixed = {name: model.clone() for name, model in models.items()}
        for model in fixed.values():
            _fix_shapes(model, profile.optimum)
        feeds = example_feeds(next(iter(fixed.values())), profile)
        count = self.threads or len(usable_cpus())
        before = Snapshot.now()
        time_models(fixed, feeds, seconds=0, warmup=1, threads=count, least=1, most=1)
        others = others_share(before, Snapshot.now(), os.cpu_count() or 1)
        is_busy = others > BUSY_SHARE
        times = time_models(
            fixed,
            feeds,
            seconds=MEASURED_SECONDS,
            warmup=1,
            threads=1 if is_busy else count,
            least=MEASURED_ROUNDS[0],
            most=MEASURED_ROUNDS[1],
            processor_time=is_busy,
        )
        if not is_busy:
            return Race(times, f"{count} threads")
        return Race(
            times,
            f"processor time of one thread, because other programs used {others:.0%} of the machine",
        )

    def missing(self) -> str | None:
        """None, or the sentence that says what to install."""
        if importlib.util.find_spec("onnxruntime") is None:
            return "onnxruntime is not installed: run `pip install onnxruntime`."
        return None

    def _notes(self, threads: int) -> tuple[str, ...]:
        times = f"times are measured on this machine, {threads} threads"
        if not self.cpu.saturates:
            return (times,)
        return (
            times,
            "this processor has no VNNI: int8 weights use 7 bits, because its u8 x s8 products "
            "saturate at 16 bits, and integer kernels gain less than on newer processors",
        )


def example_feeds(model: ir.Model, profile: ShapeProfile) -> dict[str, np.ndarray]:
    """Inputs to profile with: floats uniform in [0, 1), zeros (valid indices) for other types."""
    random = np.random.default_rng(0)
    feeds = {}
    for spec in input_specs(model):
        shape = profile.optimum[spec.name]
        array = random.random(shape) if spec.dtype.is_floating_point() else np.zeros(shape)
        feeds[spec.name] = array.astype(spec.dtype.numpy())
    return feeds


def _fix_shapes(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(shape)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
