"""Findings as text, JSON, SARIF and GitHub annotations. Model text is untrusted everywhere."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

import fuseq
from fuseq.checks.all_rules import RULES
from fuseq.checks.coverage import Coverage
from fuseq.checks.finding import Cost, Finding
from fuseq.checks.rule import Rule
from fuseq.checks.running import CheckResult, TargetResult
from fuseq.report.numbers import engine_numbers
from fuseq.report.terminal import safe

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
_SARIF_LEVELS = {"error": "error", "warning": "warning", "note": "note"}
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_SOURCE = re.compile(r"^(?P<file>.+?):(?P<line>\d+)(?: in |$)")
_SHOWN_FLOAT_LAYERS = 5
_SHOWN_PER_RULE = 10


def finding_lines(findings: Sequence[Finding], every: bool = False) -> list[str]:
    """Rich markup, one block a finding; equal findings of several targets are one block.

    Without ``every``, ten of a rule are shown, the costliest first, and the others counted.
    """
    lines: list[str] = []
    by_rule: dict[str, list[tuple[Finding, list[str]]]] = {}
    for first, targets in merged(findings):
        by_rule.setdefault(first.code, []).append((first, targets))
    several = len({finding.target for finding in findings}) > 1
    for code, blocks in by_rule.items():
        blocks.sort(key=lambda block: (-(block[0].cost.us or 0.0), not block[0].confirmed))
        shown = blocks if every else blocks[:_SHOWN_PER_RULE]
        for first, targets in shown:
            lines += _block(first, targets if several else [])
        if len(blocks) > len(shown):
            lines.append(f"{code}: {len(blocks) - len(shown)} more (--all shows them)")
    return lines


def _block(first: Finding, targets: Sequence[str]) -> list[str]:
    lines: list[str] = []
    rule = _rule(first.code)
    colour = _COLOURS[first.severity]
    where = safe(first.node) or "whole model"
    if first.tensor:
        where += f" (tensor {safe(first.tensor)})"
    lines.append(f"[{colour}]{first.code} {first.severity}[/] {rule.name}: {where}")
    if first.source:
        lines.append(f"    {safe(first.source)}")
    lines.append(f"    {safe(first.message, 600)}")
    told = [part for part in (_cost_text(first.cost), _seen_text(first)) if part]
    if targets:
        told.append("for " + safe(", ".join(targets)))
    if told:
        lines.append("    " + "; ".join(told))
    lines.append(f"    fix ({rule.fixable.kind}): {safe(first.fix, 400)}")
    return lines


def merged(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Findings that differ only in target and cost, with their targets, in first-seen order."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        key = (finding.code, finding.node, finding.tensor, re.sub(r"\d+\.\d+", "", finding.message))
        groups.setdefault(key, []).append(finding)
    return [
        (next((f for f in group if f.confirmed), group[0]), [f.target for f in group])
        for group in groups.values()
    ]


def target_table(result: CheckResult) -> Table:
    """One row a target: does it build, findings, kernels, us (measured if it was) against float."""
    table = Table(title="targets", title_justify="left")
    table.add_column("target", no_wrap=True)
    table.add_column("builds", no_wrap=True)
    for heading in ("findings", "kernels", "only Q/DQ", "us", "float us"):
        table.add_column(heading, justify="right")
    counts = Counter(finding.target for finding in result.findings)
    for row in result.targets:
        engine, other = row.engine, row.float_engine
        table.add_row(
            safe(row.target or "engine file"),
            _builds(row),
            str(counts[row.target]),
            str(len(engine.kernels)) if engine else "",
            str(len(engine.alone)) if engine else "",
            f"{_engine_us(row):.1f}" if engine else "",
            f"{other.predicted_us:.1f}" if other else "",
        )
    return table


def refusal_lines(result: CheckResult) -> list[str]:
    """Why a target refused the file, in its own words, or why it was not asked."""
    return [f"{safe(row.target)}: {safe(row.words, 600)}" for row in result.targets if row.words]


def coverage_lines(coverage: Coverage) -> list[str]:
    """How many layers and multiply-adds are quantized, by operator, and which are not."""
    integers = coverage.integer_operators
    more = f"; {integers} operators compute on integers (QOperator format)" if integers else ""
    if not coverage.layers:
        return [f"coverage: the file has no float layers with weights{more}"]
    total = Counter(layer.op_type for layer in coverage.layers)
    done = Counter(layer.op_type for layer in coverage.layers if layer.quantized)
    parts = ", ".join(f"{done[op]} of {count} {op}" for op, count in total.most_common())
    lines = [
        f"coverage: {coverage.quantized} of {len(coverage.layers)} layers with weights are quantized "
        f"({100 * coverage.quantized_macs:.0f} % of the multiply-adds): {parts}; "
        f"{coverage.quantize_nodes} Q and {coverage.dequantize_nodes} DQ nodes{more}"
    ]
    left = sorted((x for x in coverage.layers if not x.quantized), key=lambda x: -x.macs)
    if left and coverage.quantized:
        shown = ", ".join(safe(layer.node, 80) for layer in left[:_SHOWN_FLOAT_LAYERS])
        rest = len(left) - _SHOWN_FLOAT_LAYERS
        lines.append(f"float: {shown}" + (f" and {rest} more" if rest > 0 else ""))
    return lines


def check_numbers(result: CheckResult) -> dict[str, Any]:
    """The result as one JSON document."""
    coverage = result.coverage
    return {
        "file": result.file,
        "findings": [dataclasses.asdict(finding) for finding in result.findings],
        "targets": [
            {
                "target": row.target,
                "builds": row.builds,
                "words": row.words,
                "simulated": row.simulated,
                "engine": engine_numbers(row.engine) if row.engine else None,
                "float_engine": engine_numbers(row.float_engine) if row.float_engine else None,
            }
            for row in result.targets
        ],
        "coverage": {
            "layers": len(coverage.layers),
            "quantized": coverage.quantized,
            "quantized_macs": round(coverage.quantized_macs, 4),
            "float_layers": [layer.node for layer in coverage.layers if not layer.quantized],
            "quantize_nodes": coverage.quantize_nodes,
            "dequantize_nodes": coverage.dequantize_nodes,
            "integer_operators": coverage.integer_operators,
        }
        if coverage
        else None,
        "notes": list(result.notes),
    }


def sarif(result: CheckResult) -> dict[str, Any]:
    """SARIF 2.1.0 (OASIS standard): one run, a result a finding, located in the file and at the node."""
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "fuseq",
                        "version": fuseq.__version__,
                        "rules": [_sarif_rule(rule) for rule in RULES],
                    }
                },
                "results": [_sarif_result(f, result.file) for f in result.findings],
            }
        ],
    }


def github_lines(result: CheckResult) -> list[str]:
    """Workflow commands (``::warning file=...::text``); text escaped as GitHub's runner asks.

    The source line of the user's model code is the location where the file carries it.
    """
    words = {"error": "error", "warning": "warning", "note": "notice"}
    lines = []
    for finding in result.findings:
        place = _SOURCE.match(finding.source)
        file = place["file"] if place else result.file
        fields = f"file={_property(file)}"
        if place:
            fields += f",line={place['line']}"
        title = f"{finding.code} {_rule(finding.code).name}"
        where = f"{finding.node or 'whole model'}: " + (
            f"[{finding.target}] " if finding.target else ""
        )
        text = _data(f"{where}{finding.message}. Fix: {finding.fix}")
        lines.append(f"::{words[finding.severity]} {fields},title={_property(title)}::{text}")
    return lines


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.severity]},
        "properties": {"fix": rule.fixable.kind, "fixReason": rule.fixable.reason},
    }


def _sarif_result(finding: Finding, file: str) -> dict[str, Any]:
    place = _SOURCE.match(finding.source)
    location: dict[str, Any] = {"artifactLocation": {"uri": place["file"] if place else file}}
    if place:
        location["region"] = {"startLine": max(int(place["line"]), 1)}
    return {
        "ruleId": finding.code,
        "level": _SARIF_LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. Fix: {finding.fix}"},
        "locations": [
            {
                "physicalLocation": location,
                "logicalLocations": [{"name": finding.node or "model", "kind": "member"}],
            }
        ],
        "properties": {
            "target": finding.target,
            "tensor": finding.tensor,
            "confirmed": finding.confirmed,
            "cost": dataclasses.asdict(finding.cost),
        },
    }


def _cost_text(cost: Cost) -> str:
    parts = []
    if cost.us is not None:
        how = "measured" if cost.measured else "predicted"
        parts.append(
            f"{cost.us / 1e3:.4f} ms {how}" if cost.measured else f"{cost.us:.1f} us {how}"
        )
    if cost.nbytes is not None:
        parts.append(f"{cost.nbytes / 1e6:.2f} MB moved")
    return "costs " + ", ".join(parts) if parts else ""


def _seen_text(finding: Finding) -> str:
    if finding.confirmed:
        return "refused by the compiler" if finding.severity == "error" else "seen in the engine"
    return ""


def _builds(row: TargetResult) -> str:
    if row.builds is None:
        return "not asked"
    word = "yes" if row.builds else "no"
    return f"{word} (predicted)" if row.simulated else word


def _engine_us(row: TargetResult) -> float:
    if row.engine is None:
        return 0.0
    measured = [k.measured_us for k in row.engine.kernels if k.measured_us is not None]
    return sum(measured) if measured else row.engine.predicted_us


def _rule(code: str) -> Rule:
    return next(rule for rule in RULES if rule.code == code)


def _data(text: str) -> str:
    """Escape a workflow command's message (actions/toolkit, command.ts)."""
    return _escaped(text, (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")))


def _property(text: str) -> str:
    return _escaped(text, (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")))


def _escaped(text: str, pairs: Iterable[tuple[str, str]]) -> str:
    for char, code in pairs:
        text = text.replace(char, code)
    return "".join(char if char.isprintable() else "�" for char in text)
