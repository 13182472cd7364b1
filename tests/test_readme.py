"""The README: its marked commands run, what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuseq.targets import parse_target
from tests.pages import run_blocks

ROOT = Path(__file__).parents[1]


def test_marked_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = parse_target("tensorrt-rtx:sm89").missing()
    if missing:
        pytest.skip(missing)
    monkeypatch.chdir(tmp_path)
    ran = run_blocks(ROOT / "README.md", tmp_path)
    assert ran["bash"] >= 5
    assert ran["python"] >= 1


def test_make_targets_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z-]+)`", readme))
    assert named >= {"demo", "test"}
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} is not a target"


def test_linked_files_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert (ROOT / link).exists(), f"README links to {link}, which does not exist"
