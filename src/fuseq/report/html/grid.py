"""Tables that sort, filter and search; without scripts they are plain tables that print."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fuseq.report.html.markup import NOTHING, Html, join, tag, text

_SMALL = 6
"""Rows that need no search."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        label: Heading.
        number: Sorts by value, aligned right, the largest first at the first click.
        choose: Offers a choice of its values above the table.
        hint: Tooltip of the heading.
    """

    label: str
    number: bool = False
    choose: bool = False
    hint: str = ""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell; ``key`` is what it is sorted and filtered by, its own text where it is empty."""

    html: Html
    key: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row; ``identity`` lets other parts of the page jump to it, ``mark`` is a CSS class."""

    cells: tuple[Cell, ...]
    identity: str = ""
    mark: str = ""


def grid(identity: str, caption: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    """A table with its controls.

    Args:
        identity: Unique in the page.
        caption: What the table lists, for everyone.
        columns: Headings.
        rows: Cells, as many as columns.
    """
    head = tag("thead", tag("tr", *(_heading(index, c) for index, c in enumerate(columns))))
    body = tag("tbody", *(_row(row, columns) for row in rows))
    table = tag("table", tag("caption", text(caption)), head, body)
    return tag(
        "div",
        _controls(identity, columns, rows) if len(rows) > _SMALL else NOTHING,
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption),
        class_="grid",
        id=identity,
    )


def _heading(index: int, column: Column) -> Html:
    button = tag(
        "button", text(column.label), tag("span", class_="arrow", aria_hidden="true"),
        type="button", title=column.hint or None,
    )  # fmt: skip
    return tag(
        "th", button, scope="col", aria_sort="none", data_column=index,
        class_="n" if column.number else None,
    )  # fmt: skip


def _row(row: Row, columns: Sequence[Column]) -> Html:
    cells = (
        tag(
            "td",
            cell.html,
            class_="n" if column.number else None,
            data_key=None if cell.html == text(cell.key) else cell.key or None,
        )
        for cell, column in zip(row.cells, columns, strict=True)
    )
    return tag("tr", *cells, id=row.identity or None, class_=row.mark or None)


def _controls(identity: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    search = tag(
        "label",
        tag("span", text("Search")),
        tag("input", type="search", placeholder="name, node, module …", autocomplete="off"),
        class_="search",
    )
    choices = (
        _choice(index, column, rows) for index, column in enumerate(columns) if column.choose
    )
    total = len(rows)
    shown = tag("output", text(f"{total} of {total}"), class_="shown", aria_live="polite")
    return tag("div", search, join(choices), shown, class_="controls", aria_controls=identity)


def _choice(index: int, column: Column, rows: Sequence[Row]) -> Html:
    keys = sorted({row.cells[index].key for row in rows if row.cells[index].key})
    if len(keys) < 2:
        return NOTHING
    options = (tag("option", text(key, 60), value=key) for key in keys)
    choice = tag("select", tag("option", text("all"), value=""), *options, data_column=index)
    return tag("label", tag("span", text(column.label)), choice, class_="choice")
