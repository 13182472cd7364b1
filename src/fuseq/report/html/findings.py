"""Findings by rule: what is wrong, where, what it costs, what to do, and the rule's own page."""

from __future__ import annotations

from collections.abc import Sequence

from markdown_it import MarkdownIt

from fuseq.checks.rule_pages import page_of
from fuseq.errors import OptionError
from fuseq.report.document import Document, FindingRow
from fuseq.report.html.figures import count, how, microseconds, size
from fuseq.report.html.markup import NOTHING, Html, join, prose, tag, text

_SHOWN = 5


def findings(document: Document) -> Html:
    """One block a rule, in the document's order (worst first)."""
    by_rule: dict[str, list[FindingRow]] = {}
    for row in document.findings:
        by_rule.setdefault(row.code, []).append(row)
    return join(_rule(rows, document) for rows in by_rule.values())


def _rule(rows: Sequence[FindingRow], document: Document) -> Html:
    first = rows[0]
    heading = tag(
        "h3",
        tag("span", text(first.severity), class_=f"chip {first.severity}"),
        text(f" {first.code} {first.rule} "),
        tag("small", count(len(rows)), text(" findings" if len(rows) > 1 else " finding")),
    )
    shown = [_finding(row, document) for row in rows]
    rest = NOTHING
    if len(shown) > _SHOWN:
        rest = tag(
            "details",
            tag("summary", text(f"{len(shown) - _SHOWN} more")),
            tag("ul", *shown[_SHOWN:]),
        )
    return tag(
        "article",
        heading,
        tag("p", prose(first.summary), class_="quiet"),
        tag("ul", *shown[:_SHOWN]),
        rest,
        _page(first.code),
        class_="finding",
    )


def _finding(row: FindingRow, document: Document) -> Html:
    where = [tag("code", text(row.node or "whole model", 160))]
    if row.tensor:
        where.append(join((text("tensor "), tag("code", text(row.tensor, 120)))))
    if row.target:
        where.append(text(f"for {row.target}", 80))
    link = _graph_link(row, document)
    if link:
        where.append(link)
    told = [tag("p", join(where, " · "), class_="where")]
    if row.source:
        told.append(tag("p", tag("code", text(row.source, 200)), class_="source"))
    told.append(tag("p", prose(row.message, 900)))
    told.append(tag("p", tag("strong", text("Fix ")), tag("small", text(f"({row.fix_kind}) ")), prose(row.fix, 600)))  # fmt: skip
    cost = _cost(row)
    return tag("li", *told, cost)


def _cost(row: FindingRow) -> Html:
    parts = []
    if row.cost_us is not None:
        parts.append(join((text("costs "), microseconds(row.cost_us), text(" "), how(row.cost_measured))))  # fmt: skip
    if row.cost_bytes is not None:
        parts.append(join((size(row.cost_bytes), text(" moved for nothing"))))
    if row.confirmed:
        refused = row.severity == "error"
        parts.append(text("refused by the compiler" if refused else "seen in the engine"))
    return tag("p", join(parts, ", "), class_="cost") if parts else NOTHING


def _graph_link(row: FindingRow, document: Document) -> Html:
    for graph in document.graphs:
        if row.node and any(node.name == row.node for node in graph.nodes):
            index = next((i for i, e in enumerate(document.engines) if e.name == graph.engine), -1)
            if index == len(document.engines) - 1:
                return tag(
                    "a", text("show in graph"), href="#graph", data_engine=index, data_node=row.node
                )
    return NOTHING


def _page(code: str) -> Html:
    try:
        page = page_of(code)
    except OptionError:  # a document of another version may name rules that this one has not
        return NOTHING
    shown = MarkdownIt("commonmark", {"html": False}).enable("table").render(page)
    return tag("details", tag("summary", text(f"About {code}")), tag("div", Html(shown), class_="page"))  # fmt: skip
