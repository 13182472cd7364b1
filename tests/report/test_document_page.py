"""docs/deploy.md describes every field of the document, under the name of its row."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from fuseq.report import document, document_closeness

_PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_every_field_is_described() -> None:
    sections = re.split(r"^### ", _PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    described = {
        section.splitlines()[0]: re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", section, re.MULTILINE)
        for section in sections
    }
    rows = [
        kind
        for module in (document, document_closeness)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    ]
    assert described == {
        row.__name__: [field.name for field in dataclasses.fields(row)] for row in rows
    }
