"""`make bench`: a tool that fails keeps its row, a row that exists is not made again, the page counts right."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, whose neighbours are imported by their bare names and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module("bench")
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(FOLDER):
            del sys.modules[name]


def options(folder: Path) -> SimpleNamespace:
    made = SimpleNamespace(zoo=folder / "zoo", data=folder / "data", files=folder / "files")
    made.files.mkdir()
    return made


def environments(folder: Path, **given: str) -> Any:
    return sys.modules["environments"].Environments(folder / "env", given)


def row(bench: ModuleType, name: str) -> Any:
    return next(one for one in bench.rows() if one.name == name)


def test_a_tool_that_crashes_keeps_its_row(bench: ModuleType, tmp_path: Path) -> None:
    said = options(tmp_path)
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\necho 'out of luck' >&2\nexit 3\n")
    crashing.chmod(0o755)
    chosen = [row(bench, "nncf-onnx/resnet50-int8-performance")]
    bench.quantized(environments(tmp_path, nncf=str(crashing)), chosen, said)
    result = said.files / "nncf-onnx" / "resnet50-int8-performance.json"
    assert json.loads(result.read_text()) == {
        "tool": "nncf-onnx",
        "model": "resnet50",
        "format": "int8",
        "preset": "performance",
        "error": "ended with code 3: out of luck",
    }
    crashing.unlink()  # what exists is not made again
    bench.quantized(environments(tmp_path, nncf=str(crashing)), chosen, said)


def test_an_environment_that_fails_keeps_its_rows_and_is_tried_again(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = options(tmp_path)
    made = sys.modules["environments"]
    monkeypatch.setattr(made, "PYTHON", "0.0")
    chosen = [row(bench, "aimet-onnx/resnet50-int8-symmetric-max")]
    bench.quantized(environments(tmp_path), chosen, said)
    result = said.files / "aimet-onnx" / "resnet50-int8-symmetric-max.json"
    first = json.loads(result.read_text())
    assert (first["no_environment"], first["setting"]) == (True, "symmetric")
    assert first["error"].startswith("python0.0 is not on the path;")
    bench.quantized(environments(tmp_path, aimet=shutil.which("false") or ""), chosen, said)
    assert json.loads(result.read_text())["error"] == "ended with code 1: no message"


def test_fuseq_settings_of_a_row_that_failed(bench: ModuleType) -> None:
    one = row(bench, "fuseq/resnet50-int8-sm89-b64-pays-max")
    made = sys.modules["quantize_all"].failed(one, "no")
    assert (made["target"], made["plan_batch"], made["policy"]) == ("tensorrt-rtx:sm89", 64, "pays")


def line(tool: str, **numbers: Any) -> dict[str, Any]:
    return {"tool": tool, "error": None, **numbers}


def test_the_page_counts_and_keeps_failures(bench: ModuleType) -> None:
    own = {"policy": "pays", "target": "tensorrt-rtx:sm89", "stranded": 0}
    rows = [
        line("FP16, no Q/DQ", predicted_us=100.0),
        line("modelopt-onnx max", predicted_us=90.0, quantize_s=20.0, cpu_s=24.0, peak_mb=900),
        line("fuseq max pays", predicted_us=95.0, quantize_s=5.0, cpu_s=6.0, peak_mb=300, **own),
        {"tool": "aimet-onnx max", "error": "no wheel | for this Python"},
    ]
    one = {
        "model": "net",
        "format": "int8",
        "target": "tensorrt-rtx:sm89",
        "batch": 8,
        "rows": rows,
    }
    about = sys.modules["bench_page"].machine(threads=1)
    page = sys.modules["bench_page"].page(about, [one])
    assert "Predicted time lowest, or level: fuseq in 0 of 1 tables; not net int8" in page
    assert "Processor seconds to quantize lowest: fuseq in 1 of 1 tables." in page
    assert "takes 4.00 times fuseq's processor seconds, 4.00 times its time by the clock" in page
    assert "Stranded Q/DQ of fuseq's files: 0 in 1 engines." in page
    assert "\naimet-onnx max: no wheel | for this Python" in page
    assert bench.kept(Path("no such file"), [one]) == [one]
