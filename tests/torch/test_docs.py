"""The snippets of docs/torch.md run, in order, in one interpreter."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{PAGE.name}:{number}", "exec"), names)  # noqa: S102
    made = set(os.listdir(tmp_path))
    assert {"model.onnx", "trained.onnx", "checkpoint"} <= made
    assert {"model.safetensors", "fuseq_plan.json", "fuseq.safetensors"} == set(
        os.listdir(tmp_path / "checkpoint")
    )
