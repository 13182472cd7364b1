"""The one document behind the terminal table, the JSON file and the HTML page: plain, frozen data.

Every number that fuseq shows about a deployment, a comparison, a benchmark or a check stands here
once, unrounded; renderers format, they never compute totals of their own. Rules:
1. A time is a measurement or a prediction, and its name or its flag says which: ``predicted_us`` and
   ``measured_us`` stand side by side, ``measured`` flags the others. A prediction is never called
   measured.
2. Units stand in names: ``_us``, ``_ms``, ``_bytes``, ``_db``. Shares are 0 to 1.
3. None: not known here, or undefined. NaN and infinity, which JSON lacks, never stand in a document.
4. Strings from models (names, reasons, source lines) are untrusted: renderers escape them.

:mod:`fuseq.report.document_json` writes and reads it; docs/deploy.md documents the schema.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from fuseq.report.document_closeness import ComparisonRow

SCHEMA = "fuseq.document"
VERSION = 1

Command = Literal["deploy", "bench", "profile", "compare", "check", "report"]


@dataclasses.dataclass(frozen=True)
class TensorRow:
    """One tensor that a kernel reads or writes: logical shape, and the bytes that are really stored."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored_bytes: int


@dataclasses.dataclass(frozen=True)
class KernelRow:
    """One launch, in launch order.

    Attributes:
        name: The compiler's own name.
        type: A word of :class:`fuseq.targets.base.KernelType`.
        compiler_type: The compiler's own word.
        compute_dtype: Operands of its products (fp8, int8, fp16 ...), "" without products.
        precision: What colours it: ``compute_dtype``, else the widest float type that it reads.
        alone: It only quantizes, dequantizes or changes dtype.
        inputs: Activations read.
        outputs: Activations written.
        weights_bytes: Constants read.
        activation_bytes: Activations read and written.
        flops: 2 x multiply-adds.
        predicted_us: By the cost model.
        measured_us: By a profiler.
        nodes: ONNX nodes that it came from.
        module: Module of the user's model that most of them came from, "" if unknown.
        source_lines: Of the user's model code.
    """

    name: str
    type: str
    compiler_type: str
    compute_dtype: str
    precision: str
    alone: bool
    inputs: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    weights_bytes: int
    activation_bytes: int
    flops: int
    predicted_us: float | None
    measured_us: float | None
    nodes: tuple[str, ...]
    module: str
    source_lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class EngineRow:
    """One engine.

    Attributes:
        name: Key that other rows refer to: ``float``, ``quantized``, or a file's name.
        label: For people: ``FP16``, ``FP8``.
        target: ``tensorrt-rtx:sm89``; "" for an engine from trtexec's files.
        simulated: A fusion model made it, no compiler.
        precision: Type of what stays float: fp16, bf16, fp32; "" if unknown.
        format: int8 or fp8; "" for a float engine.
        model_file: ONNX file that it was compiled from, "" if none was written.
        model_bytes: Size of that file with its external data.
        engine_file: Serialized engine, "" if none was written.
        engine_bytes: Size of the engine as the compiler says.
        kernels: Launches in order.
        alone_kernels: Number of them that are alone.
        activation_bytes: Sum over kernels.
        weights_bytes: Sum over kernels.
        predicted_us: Sum over kernels; None where nothing is predicted.
        measured_us: Sum of the kernels that were measured; None where none was.
        uncertainty: Stated relative error of ``predicted_us`` (0.2 is 20 %); None when nothing is
            predicted.
        compile_seconds: Wall time of the compile that made it.
        trtexec: Command that builds and times the same elsewhere, "" if there is none.
        notes: What the user should know.
    """

    name: str
    label: str
    target: str
    simulated: bool
    precision: str
    format: str
    model_file: str
    model_bytes: int | None
    engine_file: str
    engine_bytes: int
    kernels: tuple[KernelRow, ...]
    alone_kernels: int
    activation_bytes: int
    weights_bytes: int
    predicted_us: float | None
    measured_us: float | None
    uncertainty: float | None
    compile_seconds: float
    trtexec: str = ""
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """One decision of the plan: what runs in which precision, and why (or why not).

    Attributes:
        name: Name of the region, which is that of the node that does its work.
        pattern: ``conv block``, ``linear``, ``attention`` ...
        op_type: Operator of that node, "" if it is not in the graph.
        module: Module of the user's model, "" if unknown.
        source: Source line, "" if unknown.
        quantized: The decision.
        planned_precision: Format of the plan, or the float type.
        engine_precision: ``precision`` of the quantized engine's kernel that runs it; "" where no
            engine tells.
        reason: The decision in words.
    """

    name: str
    pattern: str
    op_type: str
    module: str
    source: str
    quantized: bool
    planned_precision: str
    engine_precision: str
    reason: str


@dataclasses.dataclass(frozen=True)
class FindingRow:
    """One finding of ``fuseq check`` (:class:`fuseq.checks.finding.Finding`), with its rule's words."""

    code: str
    rule: str
    page: str
    summary: str
    severity: Literal["error", "warning", "note"]
    node: str
    tensor: str
    module: str
    source: str
    message: str
    fix: str
    fix_kind: Literal["safe", "unsafe", "none"]
    cost_us: float | None
    cost_measured: bool
    cost_bytes: int | None
    confirmed: bool
    target: str


@dataclasses.dataclass(frozen=True)
class TimingRow:
    """End-to-end time of one engine or model.

    Attributes:
        engine: ``name`` of the engine, or of the model that ran in its place.
        what: ``latency``, ``host`` or ``device``.
        runner: What ran it: ``onnxruntime:cpu``, ``tensorrt:sm80``; the cost model's name if predicted.
        measured: Timed; else predicted.
        batch: Samples in one run, None if unknown.
        iterations: Timed runs.
        throughput_per_s: Runs a second.
        speedup: How many times faster than the first engine of the same run: median of ratios.
    """

    engine: str
    what: str
    runner: str
    measured: bool
    batch: int | None = None
    iterations: int | None = None
    min_ms: float | None = None
    mean_ms: float | None = None
    median_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    throughput_per_s: float | None = None
    speedup: float | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModuleRow:
    """One module of the user's model (``encoder.layers.3.self_attn``), its children included.

    Attributes:
        path: "" is the whole model.
        depth: Number of dots plus one; 0 for the whole model.
        float_us: Time of its kernels in the float engine; None without that engine.
        quantized_us: The same in the quantized engine.
        measured: Both times are measured; else predicted.
        kernels: Kernels of the quantized engine (of the float one where there is no other).
        layers: Regions of the plan in it.
        quantized_layers: Those that are quantized.
        worst_tensor: Intermediate tensor of it with the largest relative error, "" if none was compared.
        worst_relative: That error.
        worst_sqnr_db: Its SQNR; None when identical or unknown.
    """

    path: str
    depth: int
    float_us: float | None
    quantized_us: float | None
    measured: bool
    kernels: int
    layers: int
    quantized_layers: int
    worst_tensor: str
    worst_relative: float | None
    worst_sqnr_db: float | None


@dataclasses.dataclass(frozen=True)
class GraphTensor:
    """One value of the drawn graph; ``scale`` is its smallest and largest scale where it is quantized."""

    name: str
    shape: tuple[int | str, ...] | None
    dtype: str
    tensor_bytes: int | None
    scale: tuple[float, float] | None = None
    scale_count: int = 0


@dataclasses.dataclass(frozen=True)
class GraphNode:
    """One ONNX node of the drawn graph; ``kernel`` is its place in ``kernels`` of the engine, None if folded."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: str
    module: str
    source: str
    kernel: int | None
    weights_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class GraphRow:
    """The ONNX graph of one engine, for drawing; constants are not drawn."""

    engine: str
    nodes: tuple[GraphNode, ...]
    tensors: tuple[GraphTensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FileRow:
    """A file of the folder: its part (``model``, ``plan``, ``scales``, ``engine`` ...) and SHA-256."""

    role: str
    path: str
    file_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Document:
    """Everything; a command fills what it knows, the rest is empty.

    Attributes:
        command: The command that made it.
        fuseq: Version of fuseq.
        created: UTC, ISO 8601, or "" for a reproducible document.
        title: For people: ``resnet50.onnx, FP8 for tensorrt-rtx:sm89``.
        model: Path or name of the model as the user gave it.
        target: The target, "" if none.
        gpu: GPU that predictions assume, "" if none.
        batch: Batch size of the engines, None if unknown.
        shapes: Input name and shape that was compiled for.
        options: Option and value, as text, for the reader.
        engines: The float one first.
        layers: Decisions of the plan, in graph order.
        findings: Worst first.
        comparisons: The one with the tensors inside comes last.
        timings: Measured and predicted; measured ones first.
        modules: Parents before children; the first is the whole model.
        graphs: One an engine, for drawing.
        files: What the command wrote, but for the document itself and its page.
        notes: What the user should know.
        missing: What could not be done here, one sentence each (``no GPU: ...``).
        schema: Always ``fuseq.document``.
        version: Of this schema.
    """

    command: Command
    fuseq: str
    title: str
    created: str = ""
    model: str = ""
    target: str = ""
    gpu: str = ""
    batch: int | None = None
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    engines: tuple[EngineRow, ...] = ()
    layers: tuple[LayerRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    comparisons: tuple[ComparisonRow, ...] = ()
    timings: tuple[TimingRow, ...] = ()
    modules: tuple[ModuleRow, ...] = ()
    graphs: tuple[GraphRow, ...] = ()
    files: tuple[FileRow, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    schema: str = SCHEMA
    version: int = VERSION
