"""Where commands print: results to standard output, progress and notes to standard error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

output = Console(soft_wrap=False)
errors = Console(stderr=True, soft_wrap=True)

Report = Callable[[str, int, int | None], None]
"""``report(stage, done, total)``; total None when it is not known."""


def print_json(numbers: dict[str, Any]) -> None:
    """Write one JSON document to standard output."""
    print(json.dumps(numbers, indent=1))


def print_notes(notes: list[str]) -> None:
    """Write notes to standard error, each on its line, with model text kept from the terminal."""
    for note in notes:
        shown = "".join(char if char.isprintable() else "\ufffd" for char in note)
        errors.print(f"note: {shown}", markup=False, highlight=False)


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Report]:
    """Progress bars, one a stage, on a terminal; nothing in a pipe or when ``quiet``."""
    if quiet or not errors.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
