"""The options --fix, --unsafe-fixes, --diff and --output of ``fuseq check``."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from tests.checks import examples

QUIET = ("--no-compile", "--target", "tensorrt:sm80")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ir.save(examples.biased(True), tmp_path / "bad.onnx")
    ir.save(examples.quantized_conv(), tmp_path / "good.onnx")
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["check", *arguments])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_fix_writes_beside_the_input_and_leaves_it(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    before = (folder / "bad.onnx").read_bytes()
    code, out, err = check(capsys, "bad.onnx", *QUIET, "--fix")
    assert code == 0 and "fixed FQ203 DequantizeLinear_b" in out and "1 finding fixed" in out
    assert "written: bad.fixed.onnx" in err
    assert (folder / "bad.onnx").read_bytes() == before
    assert check(capsys, "bad.fixed.onnx", *QUIET)[0] == 0


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "bad.fixed.onnx").write_bytes(b"mine")
    code, _, err = check(capsys, "bad.onnx", *QUIET, "--fix")
    assert code == 2 and "bad.fixed.onnx exists already; give --output" in err
    code, _, err = check(capsys, "bad.onnx", *QUIET, "--fix", "-o", "bad.onnx")
    assert code == 2 and "never overwritten" in err
    assert (folder / "bad.fixed.onnx").read_bytes() == b"mine"
    assert check(capsys, "bad.onnx", *QUIET, "--fix", "-o", "bad.fixed.onnx")[0] == 0
    assert (folder / "bad.fixed.onnx").read_bytes() != b"mine"


def test_a_clean_file_is_copied_only_where_an_output_is_named(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    code, out, _ = check(capsys, "good.onnx", *QUIET, "--fix")
    assert code == 0 and "0 findings fixed" in out and not (folder / "good.fixed.onnx").exists()
    assert check(capsys, "good.onnx", *QUIET, "--fix", "-o", "out.onnx")[0] == 0
    assert check(capsys, "out.onnx", *QUIET)[0] == 0


def test_diff_shows_nodes_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    files = sorted(folder.iterdir())
    code, out, _ = check(capsys, "bad.onnx", *QUIET, "--diff")
    assert code == 1 and sorted(folder.iterdir()) == files
    lines = out.splitlines()
    assert "-bq: int32[32]" in lines and "+bq_float: float[32]" in lines
    assert "would be fixed FQ203" in out and "1 finding would be fixed" in out
    assert [line for line in lines if line.startswith("-b: float[32] = DequantizeLinear(bq, ")]
    assert check(capsys, "good.onnx", *QUIET, "--diff")[0] == 0


def test_unsafe_fixes_are_offered_then_made(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    ir.save(examples.zero_point(3), folder / "zero.onnx")
    code, out, _ = check(capsys, "zero.onnx", *QUIET, "--fix")
    assert code == 1 and "0 findings fixed; 1 left; --unsafe-fixes tries 1 of them" in out
    code, out, _ = check(capsys, "zero.onnx", *QUIET, "--fix", "--unsafe-fixes")
    assert code == 0 and "1 finding fixed" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, "bad.onnx", *QUIET, "--fix", "--format", "json", "-o", "o.onnx")
    numbers = json.loads(out)
    assert code == 0 and numbers["findings"] == [] and numbers["output"] == "o.onnx"
    assert [each["code"] for each in numbers["fixed"]] == ["FQ203"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bad.onnx", "--unsafe-fixes"), "--unsafe-fixes does nothing without --fix"),
        (("bad.onnx", "-o", "x.onnx"), "--output does nothing without --fix"),
        (("bad.onnx", "--diff", "-o", "x.onnx"), "--diff writes nothing"),
        (("engine.json", "--fix"), "--fix mends ONNX files"),
        (("--fix",), "--fix mends ONNX files"),
        (("bad.onnx", "--fix", "-o", "no/such/x.onnx"), "does not exist"),
    ],
)
def test_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = check(capsys, *arguments)
    assert code == 2 and said in err and err.count("\n") == 1
