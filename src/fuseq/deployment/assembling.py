"""The document of a deployment, put together from what the stages gave."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

import fuseq
from fuseq.deployment.folder import Stage
from fuseq.deployment.measuring import predicted_rows
from fuseq.deployment.opened import FLOAT, QUANTIZED, Opened
from fuseq.deployment.stages import PLAN, SCALES
from fuseq.model import load
from fuseq.passes.shapes import infer_shapes
from fuseq.placement.plan import Plan
from fuseq.report.document import Document, EngineRow, FileRow, FindingRow, TimingRow
from fuseq.report.document_closeness import ComparisonRow
from fuseq.report.document_json import read
from fuseq.report.graph_rows import graph_row, modules_by_node
from fuseq.report.layer_rows import layer_rows
from fuseq.report.module_rows import module_rows

_ROLES = {QUANTIZED: "quantized model", FLOAT: "float model", PLAN: "plan", SCALES: "scales"}


@dataclasses.dataclass(frozen=True)
class Results:
    """What the stages gave, as rows."""

    quantize: Stage
    engines: tuple[EngineRow, ...]
    findings: tuple[FindingRow, ...]
    comparisons: tuple[ComparisonRow, ...]
    timings: tuple[TimingRow, ...]
    files: tuple[Stage, ...]


def assemble(opened: Opened, folder: Path, results: Results, missing: Sequence[str]) -> Document:
    """Make the document; every number in it comes from a stage."""
    chosen = opened.options.quantize
    plan = Plan.load(folder / PLAN)
    model = _open(folder / QUANTIZED)
    modules = modules_by_node(model)
    by_name = {engine.name: engine for engine in results.engines}
    quantized = by_name.get("quantized")
    layers = layer_rows(plan, model, quantized, modules)
    errors = results.comparisons[-1].tensors if results.comparisons else ()
    models = {"float": FLOAT, "quantized": QUANTIZED}
    return Document(
        command="deploy",
        fuseq=fuseq.__version__,
        title=f"{opened.path.name}, {chosen.format.upper()} for {opened.target.name}",
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        model=str(opened.path),
        target=opened.target.name,
        gpu=_gpu(opened),
        batch=chosen.batch,
        shapes=tuple((name, tuple(shape)) for name, shape in opened.shapes.items()),
        options=_options(opened),
        engines=results.engines,
        layers=layers,
        findings=results.findings,
        comparisons=results.comparisons,
        timings=(*results.timings, *predicted_rows(results.engines, chosen.batch)),
        modules=module_rows(by_name.get("float"), quantized, layers, errors),
        graphs=tuple(
            graph_row(_open(folder / models[engine.name]), engine) for engine in results.engines
        ),
        files=_files(folder, results.files),
        notes=tuple(results.quantize.result["notes"]),
        missing=tuple(missing),
    )


def rows_of(kind: type, stage: Stage) -> tuple[object, ...]:
    """A stage's rows, from its plain data."""
    return tuple(read(kind, row, f"{stage.name}[{i}]") for i, row in enumerate(stage.result))


def _open(path: Path) -> ir.Model:
    model = load(path)
    infer_shapes(model)
    return model


def _gpu(opened: Opened) -> str:
    gpu = getattr(opened.target, "gpu", None)
    return str(gpu.name) if gpu is not None else ""


def _options(opened: Opened) -> tuple[tuple[str, str], ...]:
    options = opened.options
    chosen = options.quantize
    pairs = {
        "--format": chosen.format,
        "--target": chosen.target,
        "--calib": opened.calib_source.description,
        "--precision": opened.precision,
        "--policy": chosen.policy,
        "--min-gain": f"{chosen.min_gain:g} %" if chosen.policy == "pays" else "",
        "--method": chosen.method,
        "--preset": chosen.preset or "",
        "--exclude": ", ".join(chosen.exclude),
        "--include": ", ".join(chosen.include),
    }
    return tuple((name, value) for name, value in pairs.items() if value)


def _files(folder: Path, stages: Sequence[Stage]) -> tuple[FileRow, ...]:
    return tuple(
        FileRow(_role(name), name, (folder / name).stat().st_size, digest)
        for stage in stages
        for name, digest in stage.files.items()
    )


def _role(name: str) -> str:
    return _ROLES.get(name, "engine" if name.endswith(".engine") else "weights")
