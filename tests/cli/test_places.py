"""No command writes over what it reads, or works long before it finds that it cannot write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from tests.graphs import conv_net


@pytest.fixture
def net(tmp_path: Path) -> Path:
    ir.save(conv_net(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


WRITES = [
    (["compile", "NET", "--target", "tensorrt-rtx:sm89"], "--output"),
    (["report", "NET", "--target", "tensorrt:sm80"], "--output"),
    (["report", "NET", "--target", "tensorrt:sm80"], "--json"),
    (["check", "NET", "--no-compile"], "--html"),
    (["compare", "NET", "NET", "--data", "random"], "--html"),
    (["bench", "NET", "--target", "tensorrt:sm80"], "--html"),
    (["profile", "NET", "--target", "tensorrt:sm80"], "--html"),
    (["plan", "NET", "--target", "tensorrt:sm80"], "--plan-out"),
    (["fix", "NET", "-o", "OUT", "--target", "tensorrt:sm80"], "--plan-out"),
    (["fix", "NET", "-o", "OUT", "--target", "tensorrt:sm80"], "--scales-out"),
    (["quantize", "NET", "-o", "OUT", "--calib", "random"], "--scales-out"),
    (["search", "NET", "-o", "OUT", "--calib", "random"], "--plan-out"),
    (["sensitivity", "NET", "--calib", "random"], "--plot"),
]


@pytest.mark.parametrize(("command", "option"), WRITES)
def test_an_input_is_never_overwritten(
    command: list[str], option: str, net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = net.read_bytes()
    words = {"NET": str(net), "OUT": str(net.with_name("out.onnx"))}
    assert run([*(words.get(word, word) for word in command), option, str(net)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message == f"error: {option} {net} is the input; the input is never overwritten."
    assert net.read_bytes() == before
    assert [each.name for each in net.parent.iterdir()] == ["net.onnx"]


def test_a_missing_folder_is_told_before_the_model_is_written(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan = net.with_name("out.onnx"), net.parent / "nowhere" / "plan.json"
    assert run(["fix", str(net), "-o", str(out), "--plan-out", str(plan)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message == f"error: --plan-out {plan}: the folder {plan.parent} does not exist; make it."
    assert not out.exists()


def test_two_outputs_in_one_file_are_refused(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = net.with_name("out")
    assert run(["report", str(net), "-o", str(out), "--json", str(out)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message == f"error: --output and --json are both {out}; give each its own file."


def test_data_is_not_overwritten(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = net.with_name("x.npy")
    np.save(data, np.ones((2, 3, 8, 8), np.float32))
    before = data.read_bytes()
    assert run(["sensitivity", str(net), "--calib", str(data), "--plot", str(data)]) == 2
    assert data.read_bytes() == before
