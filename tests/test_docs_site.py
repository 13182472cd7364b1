"""The pages of docs/: their marked commands run, and the site builds without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuseq.targets import parse_target
from tests.pages import blocks, run_blocks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUNNABLE = [page for page in sorted(DOCS.rglob("*.md")) if blocks(page)]


def test_the_pages_that_show_commands_are_among_those_that_run() -> None:
    names = {str(page.relative_to(DOCS)) for page in RUNNABLE}
    assert names >= {"index.md", "guides/formats.md", "guides/plan.md", "guides/tensorrt-11.md"}


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(DOCS)))
def test_marked_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = parse_target("tensorrt-rtx:sm89").missing()
    if missing:
        pytest.skip(missing)
    monkeypatch.chdir(tmp_path)
    assert sum(run_blocks(page, tmp_path).values()) == len(blocks(page))


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="install mkdocs-material and mkdocstrings to build docs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = {
        path.relative_to(tmp_path / "site").parts[0] for path in (tmp_path / "site").rglob("*.html")
    }
    assert {"guides", "rules", "api", "torch"} <= pages
    reference = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert re.search(r"fuseq\.quantizing\.quantize", reference)


def test_links_between_pages_lead_to_files() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {link}"
        for page in DOCS.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert broken == []
