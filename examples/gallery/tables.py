"""The gallery's tables: on the terminal, and as Markdown and JSON beside the models' files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import fuseq
from rows import Model, Row, as_json, rows_of

HEADINGS = (
    "target", "", "metric %", "quantized", "kernels", "only Q/DQ", "time us", "float / this",
)  # fmt: skip


def main(about: str, models: Callable[[Path], Sequence[Model]], default_out: str) -> int:
    """Quantize every model of one example, print its tables and write them; the exit code.

    Args:
        about: The script's docstring.
        models: Makes the models, writing files into the folder that it is given.
        default_out: Folder for the files, where ``--out`` is not given.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(default_out), help="folder for the files")
    parser.add_argument("--only", help="name of the one model to run")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    console = Console() if sys.stdout.isatty() else Console(width=120)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, highlight=False)

    try:
        for model in models(out):
            if arguments.only not in (None, model.name):
                continue
            rows = rows_of(model, out, say)
            (out / f"{model.name}.json").write_text(json.dumps(as_json(rows), indent=1))
            (out / f"{model.name}.md").write_text(markdown(model, rows))
            console.print(table(model, rows))
            for reason, count in reasons(rows):
                say(f"- float {count} times: {reason}")
    except fuseq.FuseqError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def cells(row: Row) -> list[str]:
    """A row as text; a failure says so in its own words."""
    if row.error:
        return [row.target, row.name, f"failed: {row.error}", "", "", "", "", ""]
    gain = row.float_us / row.time_us if row.float_us and row.time_us else None
    return [
        row.target, row.name, "" if row.percent is None else f"{row.percent:.2f}", row.regions,
        "" if row.kernels is None else str(row.kernels), "" if row.pairs is None else str(row.pairs),
        "" if row.time_us is None else f"{row.time_us:.0f}", "" if gain is None else f"{gain:.2f}",
    ]  # fmt: skip


def table(model: Model, rows: Sequence[Row]) -> Table:
    """For a terminal."""
    made = Table(title=_title(model), title_justify="left", box=box.SIMPLE_HEAD)
    for heading in HEADINGS:
        made.add_column(
            heading,
            justify="left" if heading in ("target", "") else "right",
            overflow="fold",
        )
    for row in rows:
        made.add_row(*cells(row))
    return made


def markdown(model: Model, rows: Sequence[Row]) -> str:
    """For a page."""
    lines = [_title(model), "", "| " + " | ".join(HEADINGS) + " |", "| --- | --- |" + " ---: |" * 6]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join([*lines, ""])


def reasons(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Why layers stay float even where all is quantized that the target runs: of the "all" rows."""
    found = {reason: count for row in rows if "all" in row.name for reason, count in row.left_float}
    return sorted(found.items(), key=lambda item: -item[1])[:8]


def _title(model: Model) -> str:
    shapes = ", ".join("x".join(map(str, shape)) for shape in model.shapes.values() if shape)
    return f"{model.name}{', ' if shapes else ''}{shapes}: {model.metric}"
