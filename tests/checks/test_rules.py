"""Each rule fires on its faulty example and not on the mended one, and has its page."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.checks.all_rules import RULES
from fuseq.checks.finding import Finding
from fuseq.checks.rule import Rule
from fuseq.checks.running import CheckOptions, check_model
from tests.checks.examples import EXAMPLES

PAGES = Path(__file__).parents[2] / "docs" / "rules"
SECTIONS = (
    "## What it does", "## Why it costs", "## How the compiler shows it", "## Example", "## Fix",
    "## Fix safety",
)  # fmt: skip
ids = [rule.code for rule in RULES]


def check(
    model: ir.Model, folder: Path, code: str, target: str, compiles: bool = False
) -> list[Finding]:
    """Findings of one rule."""
    ir.save(model, folder / "model.onnx")
    options = CheckOptions(targets=(target,), compiles=compiles, batch=1, select=(code,))
    return list(check_model(folder / "model.onnx", options).findings)


@pytest.mark.parametrize("rule", RULES, ids=ids)
def test_fires_on_the_fault_and_names_a_node(rule: Rule, tmp_path: Path) -> None:
    example = EXAMPLES[rule.code]
    found = check(example.faulty(), tmp_path, rule.code, example.target, example.compiles)
    assert [finding.code for finding in found[:1]] == [rule.code]
    assert found[0].severity == rule.severity and found[0].target == example.target
    assert found[0].message and found[0].fix
    names = {node.name for node in ir.load(tmp_path / "model.onnx").graph}
    assert found[0].node in (names if rule.code != "FQ501" else {""})


@pytest.mark.parametrize("rule", RULES, ids=ids)
def test_stays_silent_on_the_mended_model(rule: Rule, tmp_path: Path) -> None:
    example = EXAMPLES[rule.code]
    assert check(example.mended(), tmp_path, rule.code, example.target, example.compiles) == []


@pytest.mark.parametrize("rule", RULES, ids=ids)
def test_has_its_page_with_all_sections(rule: Rule) -> None:
    lines = (PAGES / rule.page).read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# {rule.code} {rule.name}"
    assert tuple(line for line in lines if line.startswith("## ")) == SECTIONS
    safety = lines[lines.index("## Fix safety") + 2]
    assert safety.lower().startswith(rule.fixable.kind)


def test_codes_and_names_are_unique_and_in_order() -> None:
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert set(EXAMPLES) == set(codes)


def test_no_page_without_a_rule() -> None:
    pages = {page.name for page in PAGES.glob("FQ*.md")}
    assert pages == {rule.page for rule in RULES}
