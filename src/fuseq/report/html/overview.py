"""Charts: time and size of every engine, time by precision, time by kernel type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuseq.report.document import Document, EngineRow, TimingRow
from fuseq.report.html.charts import Bar, Slice, bars, donut, tone_of
from fuseq.report.html.figures import count, duration, how, microseconds, milliseconds, size
from fuseq.report.html.markup import NOTHING, Html, join, tag, text
from fuseq.report.shares import Share, by_precision, by_type, is_measured, shares, time_us, total_us

_SHOWN_ALONE = 8


def overview(document: Document) -> Html:
    """The charts side by side; "" without engines and timings."""
    engines = document.engines
    panels = [
        _panel("Median latency", _latencies(document.timings)),
        _panel("Time of one run", _times(engines)),
        _panel("Size", _sizes(engines)),
        *(_panel(f"Time by precision, {title(engine)}", _precisions(engine)) for engine in engines),
        *(
            _panel(f"Slowest Q/DQ and casts, {title(engine)}", _alone(engine))
            for engine in engines[-1:]
        ),
        _panel("Time by kernel type", _types(engines), "wide"),
    ]
    shown = [panel for panel in panels if panel]
    return tag("div", *shown, class_="panels") if shown else NOTHING


def title(engine: EngineRow) -> str:
    """What the engine is called on the page."""
    return engine.label or engine.name


def _panel(heading: str, content: Html, extra: str = "") -> Html:
    if not content:
        return NOTHING
    return tag("section", tag("h3", text(heading)), content, class_=f"panel {extra}".strip())


def _times(engines: Sequence[EngineRow]) -> Html:
    rows = []
    for index, engine in enumerate(engines):
        kinds = ((engine.measured_us, True), (engine.predicted_us, False))
        for value, measured in kinds:
            if value is not None:
                shown = join((duration(value), how(measured)), " ")
                rows.append(Bar(text(title(engine)), value, shown, _tone(engines, index)))
    return bars(rows) if rows else NOTHING


def _latencies(rows: Sequence[TimingRow]) -> Html:
    timed = [(row, row.median_ms) for row in rows if row.measured and row.median_ms is not None]
    last = timed[-1][0].engine if timed else ""
    found = [
        Bar(
            join((text(row.engine, 60), tag("small", text(row.what))), " "),
            median,
            join((milliseconds(median), how(True)), " "),
            "main" if row.engine == last else "before",
        )
        for row, median in timed
    ]
    return bars(found) if found else NOTHING


def _sizes(engines: Sequence[EngineRow]) -> Html:
    words: tuple[tuple[str, Callable[[EngineRow], int | None]], ...] = (
        ("engine", lambda engine: engine.engine_bytes or None),
        ("ONNX file", lambda engine: engine.model_bytes),
        ("activations moved", lambda engine: engine.activation_bytes),
        ("weights read", lambda engine: engine.weights_bytes),
    )
    groups, labels = [], [title(engine) for engine in engines]
    for word, value_of in words:
        rows = [
            Bar(text(title(engine)), float(value), size(value), _tone(engines, index))
            for index, engine in enumerate(engines)
            if (value := value_of(engine)) is not None
        ]
        if rows:
            groups.append(join((tag("h4", text(word)), bars(rows, labels=labels))))
    return join(groups)


def _precisions(engine: EngineRow) -> Html:
    if total_us(engine) is None:
        return NOTHING
    slices = [
        Slice(
            share.key, share.part,
            join((microseconds(share.time_us), text(f"{100 * share.part:.1f} %"))," "),
            tone_of(share.key),
        )
        for share in shares(engine, by_precision)
        if share.time_us > 0
    ]  # fmt: skip
    centre = tag(
        "div", duration(total_us(engine)), how(is_measured(engine)), class_="centre"
    )  # fmt: skip
    return donut(slices, f"Time by precision of {title(engine)}", centre)


def _alone(engine: EngineRow) -> Html:
    measured = is_measured(engine)
    timed = [
        (k, us) for k in engine.kernels if k.alone and (us := time_us(k, measured)) is not None
    ]
    slowest = sorted(timed, key=lambda pair: -pair[1])[:_SHOWN_ALONE]
    rows = [
        Bar(text(kernel.name, 60), us, join((microseconds(us), how(measured)), " "), "p-alone")
        for kernel, us in slowest
    ]
    return bars(rows) if rows else NOTHING


def _types(engines: Sequence[EngineRow]) -> Html:
    timed = [(i, engine) for i, engine in enumerate(engines) if total_us(engine) is not None]
    by_engine = {i: {s.key: s for s in shares(engine, by_type)} for i, engine in timed}
    longest: dict[str, float] = {}
    for found in by_engine.values():
        for key, group in found.items():
            longest[key] = max(longest.get(key, 0.0), group.time_us)
    scale = max(longest.values(), default=0.0)
    groups, labels = [], [title(engine) for _, engine in timed]
    for key in sorted(longest, key=lambda word: (-longest[word], word)):
        rows = [
            Bar(text(title(engine)), share.time_us, _counted(share), _tone(engines, i))
            for i, engine in timed
            if (share := by_engine[i].get(key)) is not None
        ]
        groups.append(tag("div", tag("h4", text(key)), bars(rows, scale, labels)))
    return tag("div", *groups, class_="groups") if groups else NOTHING


def _counted(share: Share) -> Html:
    word = " kernel" if share.kernels == 1 else " kernels"
    return join((microseconds(share.time_us), tag("small", count(share.kernels), text(word))), " ")


def _tone(engines: Sequence[EngineRow], index: int) -> str:
    """The last engine is what the page is about; the others stand back."""
    return "main" if index == len(engines) - 1 else "before"
