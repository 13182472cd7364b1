"""`fuseq bench`: exit codes, and the same numbers in the table and in JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from tests.graphs import conv_net

SHORT = ["--duration", "0.02", "--iterations", "5", "--warmup", "0"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        ir.save(conv_net(), tmp_path / f"{name}.onnx")
    return [str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]


def test_measured_on_the_cpu(capsys, files) -> None:  # type: ignore[no-untyped-def]
    assert run(["bench", *files, *SHORT, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["missing"] == []
    first, second = numbers["models"]
    assert [first["name"], second["name"]] == ["a.onnx", "b.onnx"]
    assert first["host"]["runs"] == len(first["rounds_ms"]) >= 5
    assert first["host"]["min_ms"] == min(first["rounds_ms"])
    assert first["device"] is None
    assert second["ratio"]["low"] <= second["ratio"]["median"] <= second["ratio"]["high"]


def test_without_a_gpu_it_predicts_and_exits_1(capsys, files) -> None:  # type: ignore[no-untyped-def]
    command = ["bench", *files, "--target", "tensorrt:sm80"]
    assert run([*command, "--json"]) == 1
    numbers = json.loads(capsys.readouterr().out)
    assert run(command) == 1
    shown = capsys.readouterr()
    assert "nothing was measured (no GPU here" in shown.err
    row = numbers["models"][0]
    cells = re.findall(r"predicted us\s+│\s+([\d.]+) │\s+([\d.]+)", shown.out)
    assert cells == [(f"{row['predicted_us']:.1f}",) * 2]
    assert shown.out.count("trtexec --onnx=") == 2
    assert row["host"] is None


def test_a_file_given_twice_or_missing_is_bad_usage(capsys, files) -> None:  # type: ignore[no-untyped-def]
    assert run(["bench", files[0], files[0]]) == 2
    assert "given twice" in capsys.readouterr().err
    assert run(["bench"]) == 2
    assert "no model to time" in capsys.readouterr().err
    assert run(["bench", "nothing.onnx"]) == 2
    assert "does not exist" in capsys.readouterr().err
