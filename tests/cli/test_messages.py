"""What commands say where they do little, and their --json."""

from __future__ import annotations

import json
from pathlib import Path

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
