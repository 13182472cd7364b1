"""The kernel table of every engine: sorted, filtered, searched; each row opens to its tensors and nodes."""

from __future__ import annotations

from collections.abc import Sequence

from fuseq.report.document import Document, EngineRow, KernelRow, TensorRow
from fuseq.report.html.charts import tone_of
from fuseq.report.html.figures import count, figure, microseconds, size
from fuseq.report.html.grid import Cell, Column, Row, grid
from fuseq.report.html.markup import DASH, NOTHING, TIMES, Html, join, tag, text
from fuseq.report.html.overview import title
from fuseq.report.shares import is_measured, time_us

_SHOWN_NODES = 12


def kernels(document: Document) -> Html:
    """One table an engine, the one that the page is about first."""
    engines = [engine for engine in reversed(document.engines) if engine.kernels]
    return join(_engine(document.engines.index(engine), engine) for engine in engines)


def kernel_identity(engine: int, kernel: int) -> str:
    """Identity of a kernel's row in the page."""
    return f"kernel-{engine}-{kernel}"


def _engine(index: int, engine: EngineRow) -> Html:
    columns = _columns(engine)
    longest = max((time_us(k, is_measured(engine)) or 0.0 for k in engine.kernels), default=0.0)
    rows = [
        Row(
            tuple(_cells(index, place, kernel, engine, longest)),
            kernel_identity(index, place),
            "alone" if kernel.alone else "",
        )
        for place, kernel in enumerate(engine.kernels)
    ]
    words = [text(f"{title(engine)}: "), count(len(rows)), text(" kernels")]
    if engine.target:
        words.append(text(f" for {engine.target}"))
    head = tag("h3", *words)
    made = [_note(note) for note in engine.notes]
    table = grid(f"kernels-{index}", f"Kernels of {title(engine)}", columns, rows)
    return tag("section", head, *made, table)


def _columns(engine: EngineRow) -> list[Column]:
    columns = [Column("#", number=True, hint="launch order"), Column("Kernel")]
    columns += [Column("Type", choose=True), Column("Precision", choose=True)]
    if is_measured(engine):
        columns.append(Column("Measured", number=True, hint="us, by a profiler"))
    if engine.predicted_us is not None:
        columns.append(Column("Predicted", number=True, hint="us, by the cost model"))
    columns += [
        Column("Activations", number=True, hint="bytes read and written"),
        Column("Weights", number=True, hint="bytes of constants read"),
        Column("GFLOP", number=True, hint="2 x multiply-adds"),
        Column("Module"),
    ]
    return columns


def _cells(
    index: int, place: int, kernel: KernelRow, engine: EngineRow, longest: float
) -> list[Cell]:
    cells = [
        Cell(count(place + 1)),
        Cell(_detail(kernel, index, place)),
        Cell(text(kernel.type), kernel.type),
        Cell(chip(kernel.precision, kernel.alone), "Q/DQ" if kernel.alone else kernel.precision),
    ]
    if is_measured(engine):
        cells.append(Cell(_timed(kernel.measured_us, longest)))
    if engine.predicted_us is not None:
        cells.append(Cell(_timed(kernel.predicted_us, longest)))
    cells += [
        Cell(size(kernel.activation_bytes)),
        Cell(size(kernel.weights_bytes)),
        Cell(
            figure(kernel.flops, f"{kernel.flops / 1e9:,.3f}", "flop") if kernel.flops else NOTHING
        ),
        Cell(text(kernel.module, 80), kernel.module),
    ]
    return cells


def chip(precision: str, alone: bool = False) -> Html:
    """A precision with its colour; kernels alone have theirs."""
    word = precision or DASH
    tone = "p-alone" if alone else tone_of(precision)
    return tag("span", text(f"Q/DQ {word}" if alone else word), class_=f"precision {tone}")


def _timed(value: float | None, longest: float) -> Html:
    width = 100 * (value or 0.0) / longest if longest > 0 else 0.0
    bar = tag("span", class_="spark", style=f"width:{width:.1f}%", aria_hidden="true")
    return join((microseconds(value), bar))


def _detail(kernel: KernelRow, index: int, place: int) -> Html:
    way = tag("a", text("show in graph"), href="#graph", data_engine=index, data_kernel=place)
    lines = [
        _pair("Compiler's type", text(kernel.compiler_type, 80)),
        _pair("Reads", _tensors(kernel.inputs)),
        _pair("Writes", _tensors(kernel.outputs)),
        _pair("ONNX nodes", _names(kernel.nodes)),
        _pair("Source", _names(kernel.source_lines)),
        _pair("Graph", way),
    ]
    summary = tag("summary", text(kernel.name or "(no name)", 160))
    return tag("details", summary, tag("dl", *lines, class_="pairs"))


def _pair(label: str, value: Html) -> Html:
    return join((tag("dt", text(label)), tag("dd", value))) if value else NOTHING


def _names(names: Sequence[str]) -> Html:
    shown = [tag("code", text(name, 200)) for name in names[:_SHOWN_NODES]]
    if len(names) > _SHOWN_NODES:
        shown.append(text(f"and {len(names) - _SHOWN_NODES} more"))
    return join(shown, " ")


def _tensors(tensors: Sequence[TensorRow]) -> Html:
    return join(
        tag(
            "div",
            tag("code", text(tensor.name, 120)),
            text(f" {tensor.dtype} {TIMES.join(map(str, tensor.shape)) or 'scalar'} "),
            size(tensor.stored_bytes),
        )
        for tensor in tensors[:_SHOWN_NODES]
    )


def _note(note: str) -> Html:
    return tag("p", text(note, 600), class_="note")
