"""Where commands print: results to standard output, progress and notes to standard error."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

output = Console(soft_wrap=False)
errors = Console(stderr=True, soft_wrap=True)

Report = Callable[[str, int, int | None], None]
"""``report(stage, done, total)``; total None when it is not known."""


_SECONDS_A_LINE = 10.0
"""Least time between two lines of progress in a pipe."""

_UNBOUNDED = 100_000
_PROSE_COLUMNS = 72
"""Widest column whose text may be folded, in a pipe."""


def print_table(table: Table) -> None:
    """Write a table, as wide as the terminal; in a pipe as wide as its content, so that no name is cut.

    The variable COLUMNS sets the width of a pipe too.
    """
    if output.is_terminal or "COLUMNS" in os.environ:
        Console(file=sys.stdout).print(table)  # its width is today's, not that of the import
        return
    table.expand = False
    for column in table.columns:
        column.ratio = None
        if column.overflow == "fold":
            column.max_width = _PROSE_COLUMNS
    wide = Console(file=sys.stdout, width=_UNBOUNDED)
    measured = Measurement.get(wide, wide.options, table).maximum
    Console(file=sys.stdout, width=measured).print(table)


def print_json(numbers: dict[str, Any]) -> None:
    """Write one JSON document to standard output."""
    print(json.dumps(numbers, indent=1))


def print_notes(notes: list[str]) -> None:
    """Write notes to standard error, each on its line, with model text kept from the terminal."""
    for note in notes:
        shown = "".join(char if char.isprintable() else "\ufffd" for char in note)
        errors.print(f"note: {shown}", markup=False, highlight=False)


@dataclasses.dataclass
class Lines:
    """Progress in a pipe: a line when ten seconds are over since the last one, or since the start.

    Attributes:
        clock: Seconds, rising.
        started: Of the command.
        told: Of the last line.
    """

    clock: Callable[[], float] = time.monotonic
    started: float = dataclasses.field(init=False)
    told: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.started = self.told = self.clock()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Report ``done`` of ``total`` steps of a stage."""
        now = self.clock()
        if now - self.told < _SECONDS_A_LINE:
            return
        self.told = now
        of = "" if total is None else f" of {total}"
        text = f"{stage}: {done}{of}, {now - self.started:.0f} s"
        errors.print(text, markup=False, highlight=False)


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Report]:
    """Progress bars, one a stage, on a terminal; in a pipe a line for each ten seconds; nothing when
    ``quiet``. All of it goes to standard error."""
    if quiet:
        yield lambda stage, done, total: None
        return
    if not errors.is_terminal:
        yield Lines()
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
