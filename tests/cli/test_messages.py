"""What commands say where they do little, and their --json."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from tests.graphs import conv_net, from_text


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_policy_full_does_not_speak_of_what_is_faster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 8] x) => (float[N, 8] y) { y = Tanh(x) }"""
    )
    ir.save(model, tmp_path / "t.onnx")
    command = ["plan", str(tmp_path / "t.onnx"), "--target", "tensorrt:sm80", "--policy", "full"]
    assert run(command) == 0
    assert "nothing is quantized: no layer of the model can run in int8 on tensorrt:sm80." in said(
        capsys
    )


def test_check_takes_json_like_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ir.save(conv_net(), tmp_path / "net.onnx")
    command = ["check", str(tmp_path / "net.onnx"), "--no-compile"]
    code = run([*command, "--json"])
    short = capsys.readouterr().out
    assert run([*command, "--format", "json"]) == code
    assert json.loads(short) == json.loads(capsys.readouterr().out)
    assert run([*command, "--json", "--format", "sarif"]) == 2
    assert "--json and --format sarif exclude each other" in said(capsys)


def test_a_model_without_float_tensors_needs_no_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (int64[N, 4] a) => (int64[N, 4] y) <int64[4] c = {1, 2, 3, 4}> { y = Add (a, c) }"""
    )
    ir.save(model, "i.onnx")
    np.save("data.npy", np.zeros((3, 4), np.int64))
    command = ["quantize", "i.onnx", "-o", "o.onnx", "--target", "tensorrt:sm80"]
    assert run([*command, "--calib", "data.npy"]) == 0
    out, err = capsys.readouterr()
    assert "no layer of the model can run in int8" in " ".join(err.split())
    assert "the model has no layer that could be quantized" in " ".join(out.split())
    assert "| int8" not in out and "int8 plan" in out
    np.save("bad.npy", np.zeros((3, 5), np.int64))
    assert run([*command, "--calib", "bad.npy"]) == 2


def test_where_nothing_is_quantized_the_tables_show_one_engine_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ir.save(conv_net(), "net.onnx")
    command = ["net.onnx", "--calib", "random", "--target", "tensorrt:sm80", "--exclude", "*"]
    assert run(["quantize", *command, "-o", "o.onnx", "--json"]) == 0
    engines = json.loads(capsys.readouterr().out)["engines"]
    assert list(engines) == ["float"]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(["quantize", *command, "-o", "o.onnx"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split()[1] for line in out.partition("compiled for")[2].splitlines()[4:5]]
    assert rows == ["fp16"]
    assert "no layer of the model that the options allow can run in int8" in " ".join(err.split())
    assert run(["deploy", *command, "--out", "folder", "--seconds", "0.1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "FP16, no INT8" in said
    assert "Nothing is quantized: every layer is in float, for the reasons above." in said
    assert "times as fast as" not in said
