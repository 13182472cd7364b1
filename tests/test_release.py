"""What is released: a wheel and an sdist that hold what they should, versions that agree."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
import zipfile
from pathlib import Path

import pytest

import fuseq

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_wheel_and_sdist_build(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("hatchling", reason="the build backend is taken from this environment")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "fuseq").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert modules <= names
    assert any(name.startswith("fuseq/rule_pages/") for name in names)
    assert wheel.stat().st_size < 5_000_000
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        kept = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= kept


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == fuseq.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {fuseq.__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert newest is not None and newest[1] == fuseq.__version__


@pytest.mark.parametrize("heavy", ["torch", "tensorrt_rtx_bindings", "rich.console", "onnxruntime"])
def test_importing_fuseq_imports_nothing_heavy(heavy: str) -> None:
    code = f"import fuseq, sys; print({heavy!r} in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
