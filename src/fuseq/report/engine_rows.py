"""Rows of a document from an engine, and the engine again from its row."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from fuseq.report.document import EngineRow, KernelRow, TensorRow
from fuseq.targets.base import Engine, Kernel, KernelType, TensorInfo

STATED_UNCERTAINTY = 0.2
"""Relative error of a predicted total that docs/cost-model.md states."""

_FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8", "int8", "uint8", "int4")
"""Widest first."""


@dataclasses.dataclass(frozen=True)
class EngineText:
    """What an engine does not know of itself; the fields are those of :class:`EngineRow`."""

    name: str
    label: str
    precision: str = ""
    format: str = ""
    simulated: bool = False
    model_file: str = ""
    model_bytes: int | None = None
    engine_file: str = ""
    trtexec: str = ""


def engine_row(engine: Engine, text: EngineText, modules: Mapping[str, str]) -> EngineRow:
    """Describe an engine.

    Args:
        engine: What a target made.
        text: Its name and files.
        modules: Module path by node name, of the graph that was compiled.
    """
    predicted = [k.predicted_us for k in engine.kernels if k.predicted_us is not None]
    return EngineRow(
        name=text.name,
        label=text.label,
        target=engine.target,
        simulated=text.simulated,
        precision=text.precision,
        format=text.format,
        model_file=text.model_file,
        model_bytes=text.model_bytes,
        engine_file=text.engine_file,
        engine_bytes=engine.engine_bytes,
        kernels=tuple(kernel_row(kernel, modules) for kernel in engine.kernels),
        alone_kernels=len(engine.alone),
        activation_bytes=engine.activation_bytes,
        weights_bytes=engine.weights_bytes,
        predicted_us=sum(predicted) if predicted else None,
        measured_us=engine.measured_us,
        uncertainty=STATED_UNCERTAINTY if predicted else None,
        compile_seconds=engine.compile_seconds,
        trtexec=text.trtexec,
        notes=engine.notes,
    )


def kernel_row(kernel: Kernel, modules: Mapping[str, str]) -> KernelRow:
    """Describe one kernel."""
    return KernelRow(
        name=kernel.name,
        type=kernel.type.value,
        compiler_type=kernel.compiler_type,
        compute_dtype=kernel.compute_dtype,
        precision=precision_of(kernel),
        alone=kernel.is_alone,
        inputs=tuple(_tensor_row(tensor) for tensor in kernel.inputs),
        outputs=tuple(_tensor_row(tensor) for tensor in kernel.outputs),
        weights_bytes=kernel.weights_bytes,
        activation_bytes=kernel.activation_bytes,
        flops=kernel.flops,
        predicted_us=kernel.predicted_us,
        measured_us=kernel.measured_us,
        nodes=kernel.nodes,
        module=module_of(kernel.nodes, modules),
        source_lines=kernel.source_lines,
    )


def engine_of(row: EngineRow) -> Engine:
    """The engine that a row describes, without its plan."""
    return Engine(
        target=row.target,
        kernels=tuple(_kernel(kernel) for kernel in row.kernels),
        engine_bytes=row.engine_bytes,
        compile_seconds=row.compile_seconds,
        notes=row.notes,
    )


def precision_of(kernel: Kernel) -> str:
    """Operands of its products; without products the widest number type that it reads."""
    if kernel.compute_dtype:
        return kernel.compute_dtype
    read = {tensor.dtype for tensor in kernel.inputs or kernel.outputs}
    return next((dtype for dtype in _FLOATS if dtype in read), min(read, default=""))


def module_of(nodes: Sequence[str], modules: Mapping[str, str]) -> str:
    """The module that most of ``nodes`` came from; the first of equals, "" where none is known."""
    counts = Counter(modules[node] for node in nodes if modules.get(node))
    return max(counts, key=lambda path: counts[path], default="")


def _tensor_row(tensor: TensorInfo) -> TensorRow:
    return TensorRow(tensor.name, tensor.shape, tensor.dtype, tensor.nbytes)


def _tensor(row: TensorRow) -> TensorInfo:
    return TensorInfo(row.name, row.shape, row.dtype, row.stored_bytes)


def _kernel(row: KernelRow) -> Kernel:
    return Kernel(
        name=row.name,
        type=KernelType(row.type),
        compiler_type=row.compiler_type,
        inputs=tuple(_tensor(tensor) for tensor in row.inputs),
        outputs=tuple(_tensor(tensor) for tensor in row.outputs),
        weights_bytes=row.weights_bytes,
        flops=row.flops,
        compute_dtype=row.compute_dtype,
        nodes=row.nodes,
        source_lines=row.source_lines,
        predicted_us=row.predicted_us,
        measured_us=row.measured_us,
    )
