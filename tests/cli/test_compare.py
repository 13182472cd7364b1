"""`fuseq compare`: tables, the document, exit codes, one sentence for what cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from fuseq.evaluate.compare import CompareOptions, compare
from fuseq.passes.typing import set_precision
from fuseq.report import document_json
from fuseq.report.comparison import bar
from tests.graphs import conv_net, from_text, normal


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ir.save(conv_net(), tmp_path / "a.onnx")
    half = conv_net()
    set_precision(half, "fp16")
    ir.save(half, tmp_path / "b.onnx")
    np.save(tmp_path / "data.npy", normal(4, 16, 8, 8, scale=1.0))
    monkeypatch.chdir(tmp_path)
    return tmp_path


Captured = pytest.CaptureFixture[str]


def test_json_is_the_document_and_its_numbers_are_those_of_python(
    files: Path, capsys: Captured
) -> None:
    assert (
        run(["compare", "a.onnx", "b.onnx", "--data", "data.npy", "--samples", "3", "--json"]) == 0
    )
    document = document_json.from_json(capsys.readouterr().out)
    assert document.command == "compare"
    row = compare("a.onnx", "b.onnx", data="data.npy", options=CompareOptions(samples=3))
    assert document.comparisons == (row,)


def test_the_table_shows_the_same_numbers(files: Path, capsys: Captured) -> None:
    arguments = ["compare", "a.onnx", "b.onnx", "--data", "data.npy", "--html", "page.html"]
    assert run(arguments) == 0
    told = capsys.readouterr().out
    row = compare("a.onnx", "b.onnx", data="data.npy")
    (output,) = row.outputs
    assert f"{output.cosine_mean:.5f}" in told
    assert f"{output.sqnr_db:.1f}" in told
    assert "The error jumps at none of 8 tensors inside." in told
    lines = {line.split()[0]: line for line in told.splitlines() if line.strip()}
    for tensor in row.tensors:
        assert f"{tensor.sqnr_db:.1f}" in lines[tensor.name]
        assert bar(tensor) in lines[tensor.name]
    page = (files / "page.html").read_text(encoding="utf-8")
    assert f"{output.cosine_mean:.5f}"[:6] in page


def test_exit_codes(files: Path, capsys: Captured) -> None:
    base = ["compare", "a.onnx", "b.onnx", "--data", "data.npy", "--outputs-only"]
    assert run([*base, "--fail-below", "40"]) == 0
    assert run([*base, "--fail-below", "100"]) == 1
    assert run(["compare", "a.onnx", "a.onnx", "--data", "data.npy", "--fail-below", "100"]) == 0
    for arguments, words in (
        ([*base, "--samples", "0"], "--samples 0 compares nothing"),
        (["compare", "a.onnx", "none.onnx", "--data", "data.npy"], "none.onnx: does not exist"),
        (["compare", "a.onnx", "b.onnx", "--data", "none.npy"], "none.npy"),
        ([*base, "--metric", "nowhere:f"], "--metric nowhere:f: module 'nowhere'"),
        ([*base, "--metric", "json:nothing"], "json has no such name; write a function nothing."),
    ):
        capsys.readouterr()
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert "Traceback" not in error


def test_a_metric_of_a_module(files: Path, capsys: Captured) -> None:
    (files / "counting.py").write_text(
        "def count(pairs):\n    return sum(len(outputs['y']) for _, outputs in pairs)\n"
    )
    arguments = ["compare", "a.onnx", "b.onnx", "--data", "data.npy", "--outputs-only"]
    assert run([*arguments, "--metric", "counting:count", "--json"]) == 0
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert comparison["metrics"] == [{"name": "counting:count", "reference": 4.0, "other": 4.0}]
    assert comparison["tensors"] == []


def test_text_of_a_model_cannot_steer_the_terminal(files: Path, capsys: Captured) -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 4] x) => (float[N, 4] y) { m = Neg(x)  y = Neg(m) }"""
    )
    next(iter(model.graph)).outputs[0].name = "\x1b[31m[bold]evil"
    ir.save(model, files / "evil.onnx")
    np.save(files / "x.npy", normal(2, 4))
    assert run(["compare", "evil.onnx", "evil.onnx", "--data", "x.npy"]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "[bold]evil" in told
