"""`fuseq profile`: the tables print what the JSON holds."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from fuseq.report.document_json import from_json
from tests.graphs import conv_net


@pytest.fixture
def net(tmp_path: Path) -> str:
    ir.save(conv_net(), tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


def test_predicted_kernels_exit_1_and_are_the_same_in_both_outputs(capsys, net) -> None:  # type: ignore[no-untyped-def]
    command = ["profile", net, "--target", "tensorrt:sm80"]
    assert run([*command, "--json"]) == 1
    document = from_json(capsys.readouterr().out)
    assert document.command == "profile"
    assert run(command) == 1
    shown = capsys.readouterr()
    (engine,) = document.engines
    assert f"{engine.predicted_us:.1f}" in shown.out
    assert "by type, predicted us" in shown.out
    for kernel in engine.kernels:
        assert f"{kernel.predicted_us:.1f}" in shown.out
    assert "net.onnx: no GPU here, so no kernel was timed." in shown.err


def test_measured_on_the_cpu_beside_its_float_model(capsys, net, tmp_path) -> None:  # type: ignore[no-untyped-def]
    other = tmp_path / "float.onnx"
    ir.save(conv_net(), other)
    assert run(["profile", net, "--float", str(other), "--runs", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [engine["name"] for engine in document["engines"]] == ["float", "quantized"]
    assert all(k["measured_us"] is not None for e in document["engines"] for k in e["kernels"])


def test_options_that_do_not_fit_are_bad_usage(capsys, net) -> None:  # type: ignore[no-untyped-def]
    assert run(["profile", net, "--float-profile", "p.json"]) == 2
    assert "need --float" in capsys.readouterr().err
    assert run(["profile", net, "--top", "0"]) == 2
    assert "--top 0" in capsys.readouterr().err
    assert run(["profile", "layers.json"]) == 2
    assert "cannot be read" in capsys.readouterr().err
