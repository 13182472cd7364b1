"""The tree of the user's modules with time and error; rows collapse, and print as they stand."""

from __future__ import annotations

from collections.abc import Sequence

from fuseq.report.document import Document, ModuleRow
from fuseq.report.html.figures import count, decimal, how, microseconds, scientific
from fuseq.report.html.markup import NOTHING, Html, join, tag, text


def modules(document: Document) -> Html:
    """A tree table; "" where no module is known beyond the whole model."""
    rows = document.modules
    if not any(row.path for row in rows):
        return NOTHING
    names = _headings(rows)
    head = tag("thead", tag("tr", *(_heading(*name) for name in names)))
    longest = max((_longer(row) for row in rows), default=0.0)
    paths = [row.path for row in rows]
    body = tag("tbody", *(_row(i, row, paths, longest) for i, row in enumerate(rows)))
    caption = "Modules of the model with time and error"
    table = tag(
        "table", tag("caption", text(caption)), head, body, role="treegrid", class_="tree"
    )  # fmt: skip
    said = join((text("Times are "), how(rows[0].measured), text(" sums of the kernels of a module and of all inside it.")))  # fmt: skip
    return join((
        tag("p", said, class_="note"),
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption),
    ))  # fmt: skip


def _headings(rows: Sequence[ModuleRow]) -> list[tuple[str, bool]]:
    names = [("Module", False), ("Float", True), ("Quantized", True), ("Kernels", True)]
    names += [("Quantized layers", True), ("Least SQNR", True), ("Relative error", True)]
    return [*names, ("Worst tensor", False)]


def _heading(name: str, number: bool) -> Html:
    return tag("th", tag("span", text(name)), scope="col", class_="n" if number else None)


def _longer(row: ModuleRow) -> float:
    return max(row.float_us or 0.0, row.quantized_us or 0.0)


def _row(index: int, row: ModuleRow, paths: Sequence[str], longest: float) -> Html:
    following = paths[index + 1] if index + 1 < len(paths) else ""
    opens = bool(following) and (not row.path or following.startswith(row.path + "."))
    last = row.path.rsplit(".", 1)[-1] or "(whole model)"
    twist = (
        tag("button", type="button", class_="twist", aria_label=f"Collapse or expand {last}")
        if opens
        else tag("span", class_="twist none")
    )
    name = tag(
        "td", tag("span", twist, tag("span", text(last, 80)), class_="indent", style=f"--depth:{row.depth}"),
        title=row.path or None,
    )  # fmt: skip
    quantized = join((count(row.quantized_layers), text(" of "), count(row.layers)))
    cells = (
        _timed(row.float_us, longest, "before"),
        _timed(row.quantized_us, longest, "main"),
        count(row.kernels),
        quantized if row.layers else NOTHING,
        decimal(row.worst_sqnr_db, 1, "dB") if row.worst_tensor else NOTHING,
        scientific(row.worst_relative) if row.worst_tensor else NOTHING,
    )
    numbers = (tag("td", cell, class_="n") for cell in cells)
    worst = tag("td", tag("code", text(row.worst_tensor, 80)) if row.worst_tensor else NOTHING)
    return tag(
        "tr", name, *numbers, worst, data_depth=row.depth, aria_level=row.depth + 1,
        aria_expanded="true" if opens else None,
    )  # fmt: skip


def _timed(value: float | None, longest: float, tone: str) -> Html:
    if value is None:
        return microseconds(value)
    width = 100 * value / longest if longest > 0 else 0.0
    bar = tag("span", class_=f"spark {tone}", style=f"width:{width:.1f}%", aria_hidden="true")
    return join((microseconds(value), bar))
