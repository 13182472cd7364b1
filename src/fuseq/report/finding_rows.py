"""Rows of a document from the findings of ``fuseq check``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fuseq.checks.all_rules import rule_named
from fuseq.checks.finding import Finding
from fuseq.report.document import FindingRow

_WORST_FIRST = ("error", "warning", "note")


def finding_rows(findings: Iterable[Finding], modules: Mapping[str, str]) -> tuple[FindingRow, ...]:
    """Worst first, then dearest first.

    Args:
        findings: What rules said.
        modules: Module path by node name.
    """
    rows = [_row(finding, modules) for finding in findings]
    return tuple(
        sorted(rows, key=lambda row: (_WORST_FIRST.index(row.severity), -(row.cost_us or 0)))
    )


def _row(finding: Finding, modules: Mapping[str, str]) -> FindingRow:
    rule = rule_named(finding.code)
    return FindingRow(
        code=finding.code,
        rule=rule.name,
        page=rule.page,
        summary=rule.summary,
        severity=finding.severity,
        node=finding.node,
        tensor=finding.tensor,
        module=modules.get(finding.node, ""),
        source=finding.source,
        message=finding.message,
        fix=finding.fix,
        fix_kind=rule.fixable.kind,
        cost_us=finding.cost.us,
        cost_measured=finding.cost.measured,
        cost_bytes=finding.cost.nbytes,
        confirmed=finding.confirmed,
        target=finding.target,
    )
