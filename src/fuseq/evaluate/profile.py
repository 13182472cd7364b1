"""Where an engine's time goes, kernel by kernel: measured where something can run, else predicted.

Sources, told apart by what is given:
1. an ONNX file and a target: compiled for it. ``onnxruntime:cpu`` runs here under ONNX Runtime's
   profiler, TensorRT targets under TensorRT's where there is a GPU; without one every time is the
   cost model's.
2. trtexec's files from a machine with the GPU: the layer list (``--exportLayerInfo``), the time of
   each layer (``--exportProfile``) and, if at hand, of whole inferences (``--exportTimes``).
3. a serialized engine: under TensorRT's profiler, on a machine with the GPU only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from fuseq.errors import OptionError
from fuseq.evaluate.profile_engines import profile_plan
from fuseq.evaluate.profile_modules import engine_modules
from fuseq.model import load, profile_for
from fuseq.targets import parse_target
from fuseq.targets.base import Engine
from fuseq.targets.engine_files import engine_kind
from fuseq.targets.engine_runtime.build import build_plan
from fuseq.targets.engine_runtime.runner import runtime_missing
from fuseq.targets.layer_info import read_engine
from fuseq.targets.onnxruntime_cpu import OnnxRuntimeCpu
from fuseq.targets.trtexec_times import Times, read_times

_EIGHT_BIT = frozenset({"int8", "uint8", "fp8"})


@dataclasses.dataclass(frozen=True)
class Source:
    """What is profiled.

    Attributes:
        path: ONNX file, or JSON of ``trtexec --exportLayerInfo``.
        profile: JSON of ``trtexec --exportProfile``, for such a JSON.
        times: JSON of ``trtexec --exportTimes``, for such a JSON.
        model: ONNX file that the engine was built from, for such a JSON: it names the modules.
    """

    path: str
    profile: str | None = None
    times: str | None = None
    model: str | None = None

    @property
    def is_engine(self) -> bool:
        """It is trtexec's layer list."""
        return self.path.lower().endswith(".json")


@dataclasses.dataclass(frozen=True)
class ProfileOptions:
    """Options of ``fuseq profile``; those of the target count for ONNX files only.

    Attributes:
        target: ``compiler:device``.
        gpu: GPU that predictions assume; None is the capability's default.
        batch: Size of a dynamic first axis.
        shapes: Static shape by input name, where more is dynamic.
        threads: Threads of one operator on a CPU; all usable processors by default.
        runs: Profiled runs. A kernel's time is its shortest on a CPU, its average on a GPU.
    """

    target: str = "onnxruntime:cpu"
    gpu: str | None = None
    batch: int = 1
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    threads: int | None = None
    runs: int = 20


@dataclasses.dataclass(frozen=True)
class Profiled:
    """One engine and where its time goes.

    Attributes:
        source: What was given.
        engine: Kernels with measured or predicted times.
        modules: Module path by node name, where it can be told.
        times: Whole inferences, where they were given.
    """

    source: Source
    engine: Engine
    modules: Mapping[str, str]
    times: Times | None = None

    @property
    def measured(self) -> bool:
        """Its kernels were timed by a profiler; else the cost model predicted them."""
        return self.engine.measured_us is not None

    @property
    def is_quantized(self) -> bool:
        """A kernel computes in 8 bits, or quantizes or dequantizes."""
        return any(
            kernel.compute_dtype in _EIGHT_BIT
            or any(tensor.dtype in _EIGHT_BIT for tensor in kernel.outputs)
            for kernel in self.engine.kernels
        )

    @property
    def engine_ms(self) -> float | None:
        """Median GPU time of whole inferences; None where it was not given."""
        if self.times is None:
            return None
        if self.times.device_ms:
            ordered = sorted(self.times.device_ms)
            middle = len(ordered) // 2
            return (ordered[middle] + ordered[~middle]) / 2
        return self.times.summary.get("median_ms")


def profile(source: Source, options: ProfileOptions | None = None) -> Profiled:
    """Profile one engine.

    Raises:
        ModelError: An ONNX file cannot be used.
        OptionError: The target or an option is not allowed, or does not fit the source.
        TargetError: The compiler refused the model, or a file is not what trtexec writes.
    """
    if source.is_engine:
        return _from_files(source)
    if source.profile or source.times or source.model:
        raise OptionError(
            f"{source.path}: --profile, --times and --onnx go with the JSON of trtexec "
            "--exportLayerInfo, not with an ONNX file."
        )
    options = options or ProfileOptions()
    if options.runs < 1:
        raise OptionError(f"--runs {options.runs}: give 1 or more.")
    kind = engine_kind(Path(source.path))
    if kind is not None:
        plan = Path(source.path).read_bytes()
        engine = profile_plan(plan, kind, options.shapes, options.runs, None)
        return Profiled(source, engine, engine_modules(engine))
    model = load(source.path)
    target = parse_target(options.target, options.gpu)
    if isinstance(target, OnnxRuntimeCpu):
        target = dataclasses.replace(target, threads=options.threads, profiled_runs=options.runs)
    shapes = profile_for(model, options.batch, options.shapes)
    compiler = target.name.partition(":")[0]
    on_gpu = compiler.startswith("tensorrt") and runtime_missing(compiler) is None
    engine = target.compile(model, shapes, keep_plan=on_gpu)
    if on_gpu:
        known = engine if engine.plan_bytes is not None else None
        plan = engine.plan_bytes or build_plan(model, shapes)
        engine = profile_plan(plan, compiler, shapes.optimum, options.runs, known)
    return Profiled(source, engine, engine_modules(engine, model))


def _from_files(source: Source) -> Profiled:
    layers = Path(source.path)
    engine = read_engine(layers, Path(source.profile) if source.profile else None)
    model = load(source.model) if source.model else None
    times = read_times(Path(source.times)) if source.times else None
    return Profiled(source, engine, engine_modules(engine, model), times)
