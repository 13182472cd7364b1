"""Progress in a pipe: few lines, on standard error."""

from __future__ import annotations

import pytest

from fuseq.cli.console import Lines, progress


def test_a_pipe_gets_a_line_for_each_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 10.5, 12.0, 20.4, 21.0])
    lines = Lines(clock=lambda: next(times))
    for done in (1, 2, 3, 4):
        lines("compare", done, 102)
    lines("compile", 5, None)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "compare: 2 of 102, 10 s\ncompile: 5, 21 s\n"


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=True) as report:
        report("compare", 1, 2)
    assert capsys.readouterr().err == ""
