"""Documents of what already exists, for `fuseq report` and `fuseq check --html`: models and engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

import fuseq
from fuseq.checks.opening import open_model
from fuseq.checks.reading import quantized_formats
from fuseq.checks.running import (
    CheckOptions,
    CheckResult,
    TargetResult,
    check_engine,
    check_model,
)
from fuseq.deployment.measuring import predicted_rows
from fuseq.errors import OptionError
from fuseq.evaluate.profile import ProfileOptions, Source, profile
from fuseq.evaluate.profile_modules import engine_modules
from fuseq.library_logs import quiet_libraries
from fuseq.model import weight_files
from fuseq.report.document import Document, EngineRow, GraphRow
from fuseq.report.engine_rows import EngineText, engine_row
from fuseq.report.file_layer_rows import file_layer_rows
from fuseq.report.finding_rows import finding_rows
from fuseq.report.graph_rows import graph_row
from fuseq.report.module_rows import module_rows
from fuseq.targets import parse_target


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """What models are compiled for; engines from files need none of it.

    Attributes:
        target: ``compiler:device``.
        gpu: GPU that predictions assume.
        batch: Size of a dynamic first axis.
        shapes: Static shape by input name, where more is dynamic.
    """

    target: str = "tensorrt-rtx:sm89"
    gpu: str | None = None
    batch: int = 8
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def document_of(sources: Sequence[Source], options: ReportOptions | None = None) -> Document:
    """Describe models and engines: the last is what the page is about, those before it stand beside.

    One ONNX file alone stands beside its own float twin.

    Args:
        sources: ONNX files, or layer lists of trtexec with their profiles.
        options: What ONNX files are compiled for.

    Raises:
        ModelError: A model cannot be used.
        OptionError: No source, or a target, GPU or shape is not allowed.
        TargetError: A compiler refused a model, or a file is not what trtexec writes.
    """
    options = options or ReportOptions()
    if not sources:
        raise OptionError("nothing to report; give a document of fuseq, ONNX files or engines.")
    last = sources[-1]
    check = CheckOptions((options.target,), options.gpu, options.batch, options.shapes)
    if last.is_engine:
        result = check_engine(last.path, last.profile, last.model, check)
    else:
        result = check_model(last.path, check)
    checked = check_document(result, check, last.model if last.is_engine else last.path)
    document = dataclasses.replace(checked, command="report")
    if len(sources) == 1:
        return document
    before, graphs = _before(sources[:-1], options)
    after = document.engines[-1:]
    return dataclasses.replace(
        document,
        title=_title(sources),
        engines=(*before, *after),
        graphs=(*graphs, *document.graphs),
        modules=module_rows(before[0], after[-1] if after else None),
        timings=tuple(predicted_rows([*before, *after], options.batch)),
    )


def check_document(result: CheckResult, options: CheckOptions, model_file: str | None) -> Document:
    """Describe a check: the first target's engines, the findings of all, what was not asked or refused.

    Args:
        result: What :func:`check_model` or :func:`check_engine` said.
        options: What it was asked.
        model_file: The ONNX file, None where only an engine was checked.
    """
    model = _opened(model_file)
    built = next((row for row in result.targets if row.engine is not None), None)
    modules = {} if built is None or built.engine is None else engine_modules(built.engine, model)
    engines = [] if built is None else _engines(built, result, model, model_file, modules)
    last = engines[-1] if engines else None
    words = [f"{row.target}: {row.words}" for row in result.targets if row.words]
    return Document(
        command="check",
        fuseq=fuseq.__version__,
        title=Path(result.file).name,
        model=result.file,
        target=", ".join(row.target for row in result.targets if row.target),
        gpu=options.gpu or "",
        batch=options.batch if model is not None else None,
        shapes=tuple((name, tuple(shape)) for name, shape in options.shapes.items()),
        engines=tuple(engines),
        layers=file_layer_rows(model, last, modules) if model is not None else (),
        findings=finding_rows(result.findings, modules),
        modules=module_rows(engines[0] if len(engines) > 1 else None, engines[-1])
        if engines
        else (),
        graphs=(graph_row(model, last),) if model is not None and last is not None else (),
        notes=result.notes,
        timings=tuple(predicted_rows(engines, options.batch)),
        missing=(*words, *_untimed(last)),
    )


def _engines(
    row: TargetResult,
    result: CheckResult,
    model: ir.Model | None,
    model_file: str | None,
    modules: Mapping[str, str],
) -> list[EngineRow]:
    assert row.engine is not None
    precision = parse_target(row.target).precision if row.target else ""
    formats = sorted(quantized_formats(model.graph)) if model is not None else []
    label = "+".join(formats).upper() or (precision.upper() if model is not None else "")
    after = EngineText(
        name="quantized" if formats else "engine" if model is None else "float",
        label=label or _short(result.file),
        precision=precision,
        format=formats[0] if len(formats) == 1 else "",
        simulated=row.simulated,
        model_file=model_file or "",
        model_bytes=_model_bytes(model_file, model),
    )
    made = [engine_row(row.engine, after, modules)]
    if row.float_engine is not None:
        before = EngineText(
            "float", f"{precision.upper()}, no Q/DQ", precision, simulated=row.simulated
        )
        made.insert(0, engine_row(row.float_engine, before, modules))
    return made


def _before(
    sources: Sequence[Source], options: ReportOptions
) -> tuple[list[EngineRow], list[GraphRow]]:
    wanted = ProfileOptions(options.target, options.gpu, options.batch, options.shapes)
    engines: list[EngineRow] = []
    graphs: list[GraphRow] = []
    for number, source in enumerate(sources):
        found = profile(source, wanted)
        file = source.model if source.is_engine else source.path
        model = _opened(file)
        text = EngineText(
            name=f"before {number + 1}",
            label=_short(source.path),
            model_file=file or "",
            model_bytes=_model_bytes(file, model),
            simulated=found.engine.target.startswith("tensorrt:"),
        )
        engines.append(engine_row(found.engine, text, found.modules))
        if model is not None:
            graphs.append(graph_row(model, engines[-1]))
    return engines, graphs


def _opened(file: str | None) -> ir.Model | None:
    if file is None:
        return None
    with quiet_libraries():
        return open_model(file)


def _title(sources: Sequence[Source]) -> str:
    others = len(sources) - 2
    more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
    return f"{_short(sources[-1].path)} beside {_short(sources[0].path)}{more}"


def _short(path: str) -> str:
    """A file's name without the endings that all layer lists share."""
    return Path(path).name.removesuffix(".json").removesuffix(".graph").removesuffix(".onnx")


def _model_bytes(file: str | None, model: ir.Model | None) -> int | None:
    """Size of the file and of the external data that it names."""
    if file is None or model is None:
        return None
    return sum(path.stat().st_size for path in {Path(file), *weight_files(model).values()})


def _untimed(engine: EngineRow | None) -> list[str]:
    if engine is None or engine.measured_us is not None or engine.predicted_us is None:
        return []
    return ["no kernel was timed here: times are predicted by fuseq's cost model."]
