"""The page: one HTML file that needs nothing else, and that cannot reach anything else.

Its Content-Security-Policy allows its own scripts, by hash, and no connection of any kind: even if markup
from a model slipped through, it could neither run nor load. Without scripts the page is complete except
for the graph; scripts add sorting, filters, collapsing and the drawing.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import os
from collections.abc import Callable
from pathlib import Path

from fuseq.model import whole_file
from fuseq.report.document import Document
from fuseq.report.html.about import about
from fuseq.report.html.cards import cards
from fuseq.report.html.closeness import closeness
from fuseq.report.html.findings import findings
from fuseq.report.html.graph import graph
from fuseq.report.html.kernels import kernels
from fuseq.report.html.layers import layers
from fuseq.report.html.markup import NOTHING, Html, join, tag, text
from fuseq.report.html.modules import modules
from fuseq.report.html.overview import overview
from fuseq.report.html.timings import timings

_SCRIPTS = (
    *("theme.js", "grid.js", "tree.js", "jump.js", "exact.js"),
    *("graph_paint.js", "graph_model.js", "graph_draw.js", "graph_panel.js", "graph.js"),
)

_SECTIONS: tuple[tuple[str, str, Callable[[Document], Html]], ...] = (
    ("overview", "Overview", overview),
    ("findings", "Findings", findings),
    ("graph", "Graph", graph),
    ("kernels", "Kernels", kernels),
    ("modules", "Modules", modules),
    ("layers", "Layers", layers),
    ("closeness", "Closeness", closeness),
    ("timings", "Timings", timings),
    ("about", "About", about),
)


def write_report(path: str | os.PathLike[str], document: Document) -> None:
    """Write ``document`` as one self-contained HTML file, whole or not at all.

    Raises:
        ModelError: The place cannot be written.
        ValueError: A number of the document is NaN or infinite.
    """
    page = render(document)
    with whole_file(Path(path)) as beside:
        beside.write_text(page, encoding="utf-8")


def render(document: Document) -> str:
    """The page as text; the same document gives the same page."""
    scripts = [_asset(name) for name in _SCRIPTS]
    sections = [(key, title, section(document)) for key, title, section in _SECTIONS]
    shown = [(key, title, content) for key, title, content in sections if content]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"fuseq {document.fuseq}"),
        tag("title", text(document.title or "fuseq report", 200)),
        Html(f"<style>{_asset('report.css')}</style>"),
    )
    body = tag(
        "body",
        tag("a", text("Skip to content"), href="#main", class_="skip"),
        _bar([(key, title) for key, title, _ in shown]),
        tag("main", _header(document), *(_section(*each) for each in shown), id="main"),
        _footer(document),
        *(Html(f"<script>{script}</script>") for script in scripts),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    folder = importlib.resources.files("fuseq.report.html").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: list[str]) -> str:
    hashes = " ".join(
        "'sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() + "'"
        for code in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _bar(sections: list[tuple[str, str]]) -> Html:
    links = (tag("li", tag("a", text(title), href=f"#{key}")) for key, title in sections)
    theme = tag(
        "button", text("Theme: system"), type="button", id="theme", title="system, light, dark"
    )
    return tag(
        "header",
        tag("span", text("fuseq"), class_="brand"),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        theme,
        class_="bar",
    )


def _header(document: Document) -> Html:
    facts = [
        ("target", document.target),
        ("GPU", document.gpu),
        ("batch", "" if document.batch is None else str(document.batch)),
        ("made by", f"fuseq {document.command}"),
        ("at", document.created),
    ]
    known = (
        tag("li", tag("span", text(word)), text(" "), text(value, 120))
        for word, value in facts
        if value
    )
    missing = [tag("li", text(sentence, 600)) for sentence in document.missing]
    return tag(
        "div",
        tag("h1", text(document.title or document.model or "fuseq report", 200)),
        tag("ul", *known, class_="facts"),
        tag("ul", *missing, class_="missing", aria_label="Not done here") if missing else NOTHING,
        cards(document),
        class_="top",
    )


def _section(key: str, title: str, content: Html) -> Html:
    return tag("section", tag("h2", text(title)), content, id=key, class_="part")


def _footer(document: Document) -> Html:
    legend = join(
        (
            tag("span", text("measured"), class_="chip measured"),
            text(" timed on a device or computed on data; "),
            tag("span", text("predicted"), class_="chip predicted"),
            text(" by the cost model. Point at a number for its exact value."),
        )
    )
    made = text(f"fuseq {document.fuseq}")
    return tag("footer", tag("p", legend), tag("p", made))
