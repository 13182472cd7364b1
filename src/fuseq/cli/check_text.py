"""The text that ``fuseq check`` prints."""

from __future__ import annotations

from fuseq.checks.running import CheckResult
from fuseq.cli.console import output, print_notes, print_table
from fuseq.report.findings import (
    coverage_lines,
    finding_lines,
    merged,
    refusal_lines,
    target_table,
)


def print_text(result: CheckResult, every: bool) -> None:
    """Findings, one row a target, coverage."""
    for line in finding_lines(result.findings, every):
        output.print(line, highlight=False, soft_wrap=True)
    print_table(target_table(result))
    coverage = coverage_lines(result.coverage) if result.coverage is not None else []
    for line in (*refusal_lines(result), *coverage):
        output.print(line, highlight=False, soft_wrap=True)
    count = len(merged(result.findings))
    output.print(f"{count} finding{'' if count == 1 else 's'}", highlight=False)
    print_notes(list(result.notes))
