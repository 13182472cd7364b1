"""Findings in formats that other programs read: text from a model stays text."""

from __future__ import annotations

from fuseq.checks.finding import Cost, Finding
from fuseq.checks.running import CheckResult
from fuseq.report.findings import finding_lines, github_lines, merged

NASTY = "a, b: 100%\r\n::error::pwned\x1b[2J [red]"


def finding(**changes: object) -> Finding:
    fields = {
        "code": "FQ101", "severity": "warning", "node": "n", "tensor": "t", "source": "",
        "message": "m", "fix": "f", "target": "tensorrt:sm80",
    }  # fmt: skip
    return Finding(**{**fields, **changes})  # type: ignore[arg-type]


def test_github_commands_are_one_line_each() -> None:
    result = CheckResult(NASTY, (finding(node=NASTY, message=NASTY),), (), None)
    (line,) = github_lines(result)
    assert "\n" not in line and "\r" not in line and "\x1b" not in line
    assert line.startswith("::warning file=a%2C b%3A 100%25%0D%0A%3A%3Aerror%3A%3Apwned")
    assert ",title=FQ101 lone-quantizer::a, b: 100%25%0D%0A::error::pwned" in line


def test_equal_findings_of_two_targets_are_one_block() -> None:
    pair = (finding(), finding(target="tensorrt-rtx:sm89", confirmed=True))
    ((first, targets),) = merged(pair)
    assert first.confirmed and targets == ["tensorrt:sm80", "tensorrt-rtx:sm89"]
    text = "\n".join(finding_lines(pair))
    assert "seen in the engine; for tensorrt:sm80, tensorrt-rtx:sm89" in text


def test_the_costliest_ten_of_a_rule_are_shown() -> None:
    many = [finding(node=f"n{i}", cost=Cost(us=float(i), nbytes=2_000_000)) for i in range(12)]
    lines = finding_lines(many)
    assert "n11" in lines[0] and lines[-1] == "FQ101: 2 more (--all shows them)"
    assert "    costs 11.0 us predicted, 2.00 MB moved" in lines
    assert sum(line.startswith("[yellow]FQ101") for line in finding_lines(many, every=True)) == 12


def test_markup_in_names_is_shown_and_not_obeyed() -> None:
    (line, *_) = finding_lines([finding(node="[red]x[/red]\x1b[2J")])
    assert "\\[red]x\\[/red]" in line and "\x1b" not in line
