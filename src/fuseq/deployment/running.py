"""``fuseq deploy``: quantize, compile, check, compare, measure, report; finished stages are kept."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

from fuseq.deployment.assembling import Results, assemble, rows_of
from fuseq.deployment.content import data_content, metric_content, model_content, versions
from fuseq.deployment.folder import Folder, Stage, open_folder
from fuseq.deployment.measuring import bench_stage, machine
from fuseq.deployment.opened import (
    ENGINE,
    FLOAT,
    FLOAT_ENGINE,
    QUANTIZED,
    Opened,
    evaluation_source,
    open_deployment,
)
from fuseq.deployment.options import DeployOptions
from fuseq.deployment.stages import (
    PLAN,
    check_stage,
    compare_stage,
    engine_stage,
    quantize_stage,
)
from fuseq.model import input_specs
from fuseq.placement.plan import Plan
from fuseq.planning import Report, silent
from fuseq.report import document_json
from fuseq.report.document import Document, EngineRow, FindingRow, TimingRow
from fuseq.report.document_closeness import ComparisonRow
from fuseq.report.document_json import read
from fuseq.report.engine_rows import EngineText
from fuseq.report.html.page import write_report
from fuseq.targets.base import ShapeProfile
from fuseq.targets.trtexec import trtexec_command

STAGES = {
    "quantize": ("report", "bench", "compare", "check", "engine", "float-engine"),
    "float-engine": ("report", "bench", "check"),
    "engine": ("report", "bench", "check"),
    "check": ("report",),
    "compare": ("report",),
    "bench": ("report",),
    "report": (),
}
"""Stages in order, each with those whose results speak about its result."""

REPORT, PAGE = "report.json", "report.html"


@dataclasses.dataclass(frozen=True)
class Deployed:
    """What a deployment gave.

    Attributes:
        folder: Where the files are.
        document: Every number.
        kept: Stages that were found done.
    """

    folder: Path
    document: Document
    kept: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """1 when a finding is worse than a note or something could not be done, else 0."""
        bad = any(finding.severity != "note" for finding in self.document.findings)
        return 1 if bad or not self.document.engines else 0


def deploy(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    calib: object,
    options: DeployOptions | None = None,
    report: Report = silent,
) -> Deployed:
    """Take a float model the whole way and leave everything in one folder.

    Args:
        model: ONNX file, float.
        out: The folder; None: :func:`default_folder`. It is made if need be. What is there and still
            true is kept.
        calib: Calibration data, as for :func:`fuseq.quantize`.
        options: Format, target and the rest.
        report: Called with (stage, done, total).

    Raises:
        FuseqError: Something cannot be used; stages that were finished stay.
    """
    options = options or DeployOptions()
    opened = open_deployment(model, calib, options, report)
    path = Path(out) if out is not None else default_folder(opened)
    waiting = functools.partial(report, "wait for another fuseq deploy", 0, None)
    with open_folder(path, STAGES, waiting) as folder:
        return _run(opened, folder)


def default_folder(opened: Opened) -> Path:
    """``<model>-<format>-<target>`` in the current folder."""
    target = opened.target.name.replace(":", "-")
    return Path(f"{opened.path.stem}-{opened.options.quantize.format}-{target}")


def _run(opened: Opened, folder: Folder) -> Deployed:
    opened.report("hash", 0, None)
    content = {
        "versions": versions(),
        "model": model_content(opened.path, opened.model),
        "calib": data_content(opened.calib, opened.calib_source),
    }
    inputs = {**content, **opened.options.quantize_inputs()}
    quantized = folder.stage("quantize", inputs, functools.partial(quantize_stage, opened))
    stages = [quantized]
    missing = []
    gap = opened.target.missing()
    if gap is None:
        stages += [
            _engine(opened, folder, quantized, "float-engine", FLOAT),
            _engine(opened, folder, quantized, "engine", QUANTIZED),
        ]
    else:
        missing.append(f"not compiled: {gap}")
    engines = tuple(read(EngineRow, stage.result, stage.name) for stage in stages[1:])
    rest = _rest(opened, folder, content, stages, engines)
    stages += rest
    missing += rest[2].result["missing"]
    results = Results(
        quantize=quantized,
        engines=engines,
        findings=_rows(FindingRow, rest[0]),
        comparisons=_rows(ComparisonRow, rest[1]),
        timings=tuple(read(TimingRow, row, "bench") for row in rest[2].result["rows"]),
        files=tuple(stages),
    )
    last = _report(opened, folder, results, missing, stages)
    kept = tuple(stage.name for stage in (*stages, last) if stage.kept)
    return Deployed(folder.path, document_json.load(folder.path / REPORT), kept)


def _engine(opened: Opened, folder: Folder, quantized: Stage, name: str, file: str) -> Stage:
    chosen = opened.options.quantize
    is_float = file == FLOAT
    is_quantized = not is_float and bool(Plan.load(folder.path / PLAN).tensors)
    text = EngineText(
        name="float" if is_float else "quantized",
        label=_label(opened, is_float, is_quantized),
        precision=opened.precision,
        format=chosen.format if is_quantized else "",
        simulated=opened.target.name.startswith("tensorrt:"),
        model_file=file,
        model_bytes=_model_bytes(folder.path, quantized, file),
        engine_file=FLOAT_ENGINE if is_float else ENGINE,
        trtexec=_trtexec(opened, file),
    )
    inputs = {
        "versions": versions(),
        "model": [quantized.files[file], quantized.files.get(f"{file}.data")],
        "target": [opened.target.name, chosen.gpu, dict(opened.shapes)],
    }
    make = functools.partial(engine_stage, opened, folder.path)
    return folder.stage(name, inputs, lambda work: make(work, text))


def _label(opened: Opened, is_float: bool, is_quantized: bool) -> str:
    precision, name = opened.precision.upper(), opened.options.quantize.format.upper()
    return precision if is_float else name if is_quantized else f"{precision}, no {name}"


def _rest(
    opened: Opened,
    folder: Folder,
    content: dict[str, Any],
    stages: list[Stage],
    engines: tuple[EngineRow, ...],
) -> list[Stage]:
    """Check, compare and bench."""
    options = opened.options
    files = {**stages[0].files, "engines": [stage.result for stage in stages[1:]]}
    float_engine, engine = engines if engines else (None, None)
    data = content["calib"] if options.data is None else data_content(
        options.data, evaluation_source(opened)
    )  # fmt: skip
    compared = [
        content["versions"], content["model"], stages[0].files, data, options.samples,
        options.quantize.preset, options.outputs_are, metric_content(options.metric),
        options.quantize.seed,
    ]  # fmt: skip
    timed = [
        content["versions"], files, options.seconds, dict(opened.shapes), machine(opened),
    ]  # fmt: skip
    return [
        folder.stage(
            "check", [content["versions"], files],
            lambda work: check_stage(opened, folder.path, float_engine, engine),
        ),
        folder.stage("compare", compared, lambda work: compare_stage(opened, folder.path)),
        folder.stage("bench", timed, lambda work: bench_stage(opened, folder.path)),
    ]  # fmt: skip


def _report(
    opened: Opened, folder: Folder, results: Results, missing: list[str], stages: list[Stage]
) -> Stage:
    """Write the document and its page; made again whenever a number, or fuseq, has changed."""

    def make(work: Path) -> tuple[list[str], None]:
        opened.report("report", 0, None)
        document = assemble(opened, folder.path, results, missing)
        document_json.save(document, work / REPORT)
        write_report(work / PAGE, document)
        return [REPORT, PAGE], None

    inputs = [versions(), str(opened.path), missing, [[s.key, s.files, s.result] for s in stages]]
    return folder.stage("report", inputs, make)


def _rows(kind: type, stage: Stage) -> Any:
    return rows_of(kind, stage)


def _trtexec(opened: Opened, file: str) -> str:
    """The command that builds and times the same on a GPU; its paths are in the folder."""
    if not opened.target.name.startswith("tensorrt"):
        return ""
    return trtexec_command(
        file, rtx=opened.target.name.startswith("tensorrt-rtx"), profile=_dynamic(opened)
    )


def _dynamic(opened: Opened) -> ShapeProfile | None:
    """Shapes of the inputs that have named sizes: for the others the tool refuses shapes."""
    named = {
        spec.name: opened.shapes[spec.name]
        for spec in input_specs(opened.model)
        if spec.shape is None or any(isinstance(dim, str) for dim in spec.shape)
    }
    return ShapeProfile(named) if named else None


def _model_bytes(folder: Path, quantized: Stage, file: str) -> int:
    names = [name for name in (file, f"{file}.data") if name in quantized.files]
    return sum((folder / name).stat().st_size for name in names)
