"""The drawing's place in the page: its controls, its canvas, the panel of details, and its data."""

from __future__ import annotations

from fuseq.errors import MissingExtraError
from fuseq.report.document import Document
from fuseq.report.html.graph_views import graph_data
from fuseq.report.html.markup import NOTHING, Html, join, script_data, tag, text

_HELP = (
    "Drag to move, scroll or pinch to zoom, click a node for its details. With the keyboard: arrows go to "
    "neighbours, plus and minus zoom, 0 shows the start, Escape closes the details."
)


def graph(document: Document) -> Html:
    """The graph, or the sentence that says how to get it; "" without engines and graphs."""
    if not document.engines:
        return NOTHING
    try:
        data = graph_data(document)
    except MissingExtraError as error:
        return tag("p", text(f"The graph is not drawn: {error}"), class_="note")
    if not data["views"]:
        return NOTHING
    options = (
        tag("option", text(view["title"], 80), value=str(index))
        for index, view in enumerate(data["views"])
    )
    choice = tag(
        "label",
        tag("span", text("Show")),
        tag("select", *options, id="graph-view"),
        class_="choice",
    )
    search = tag(
        "label",
        tag("span", text("Find a node (Enter: next)")),
        tag("input", type="search", id="graph-search", autocomplete="off", placeholder="name, operator, module …"),
        class_="search",
    )  # fmt: skip
    controls = tag(
        "div", choice, search, tag("output", id="graph-found", aria_live="polite"), *_buttons(),
        class_="controls",
    )  # fmt: skip
    return join((
        tag("p", text(_HELP), class_="note", id="graph-help"),
        tag("div", controls),
        _stage(),
        script_data("graph-data", data),
    ))  # fmt: skip


def _buttons() -> list[Html]:
    words = (("in", "+", "Zoom in"), ("out", "\N{MINUS SIGN}", "Zoom out"), ("start", "Start", "Show the start"),
             ("all", "All", "Show the whole graph"))  # fmt: skip
    return [
        tag("button", text(shown), type="button", class_="tool", data_graph=key, aria_label=label)
        for key, shown, label in words
    ]


def _stage() -> Html:
    canvas = tag(
        "canvas", id="graph-canvas", tabindex=0, role="application",
        aria_label="Graph of the model", aria_describedby="graph-help graph-detail",
    )  # fmt: skip
    overview = tag("canvas", id="graph-map", aria_hidden="true")
    legend = tag("ul", id="graph-legend", class_="graph-legend", aria_label="Colours")
    detail = tag("aside", id="graph-detail", aria_live="polite", aria_label="Details", hidden=True)
    return tag("div", canvas, overview, legend, detail, class_="stage", id="graph-stage")
