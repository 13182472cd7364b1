"""Progress of the demo: one bar a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fuseq.planning import Report

Item = TypeVar("Item")


class Steps:
    """Bars on a terminal; in a pipe, one line for each step that is done."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[stage]}"), console=console,
        )  # fmt: skip

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[Report]:
        """One step; gives what ``fuseq.quantize`` takes as ``report``."""
        task = self.progress.add_task(what, total=None, stage="")

        def report(stage: str, done: int, total: int | None) -> None:
            self.progress.update(task, completed=done, total=total, stage=stage)

        yield report
        done = self.progress.tasks[task].completed or 1
        self.progress.update(task, completed=done, total=done, stage="")
        if not self.console.is_terminal:
            seconds = self.progress.tasks[task].elapsed or 0.0
            self.console.print(f"{what}: {seconds:.1f} s")

    def counted(self, what: str, items: Sequence[Item]) -> Iterator[Item]:
        """Pass ``items`` on, counting them in a step of their own."""
        with self.step(what) as report:
            for done, item in enumerate(items, start=1):
                yield item
                report("", done, len(items))
