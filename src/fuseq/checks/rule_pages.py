"""The pages of docs/rules/, as the wheel and the checkout carry them."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from fuseq.checks.all_rules import rule_named


def page_of(code: str) -> str:
    """The rule's page in docs/rules/, or its summary where the pages are not installed.

    Raises:
        OptionError: No rule has that code.
    """
    rule = rule_named(code)
    for folder in (
        importlib.resources.files("fuseq").joinpath("rule_pages"),
        Path(__file__).parents[3] / "docs" / "rules",
    ):
        page = folder.joinpath(rule.page)
        if page.is_file():
            return page.read_text(encoding="utf-8")
    return (
        f"{rule.code} {rule.name}: {rule.summary}\nFix ({rule.fixable.kind}): {rule.fixable.reason}"
    )
