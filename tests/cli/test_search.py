"""``fuseq search`` and ``fuseq sensitivity`` on the command line: output, JSON, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fuseq
from fuseq.cli.main import run
from fuseq.placement.plan import Plan
from tests.graphs import conv_net, normal


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "net.onnx"
    fuseq.save(conv_net(), file)
    np.save(tmp_path / "x.npy", normal(1, 16, 8, 8, scale=1.0))
    return file


def _command(model: Path, name: str, *more: str) -> list[str]:
    data = str(model.with_name("x.npy"))
    base = [name, str(model), "--calib", data, "--target", "tensorrt:sm80", "--batch", "1"]
    return [*base, "--executor", "serial", "--cache", str(model.with_name("cache")), *more]


def test_search_writes_model_plan_and_scales(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(tmp_path / name) for name in ("out.onnx", "plan.json", "scales.safetensors")]
    more = ["-o", names[0], "--plan-out", names[1], "--scales-out", names[2], "--trials", "6"]
    assert run(_command(model, "search", *more, "--json")) == 0
    numbers = json.loads(capsys.readouterr().out)
    engines = numbers["engines"]
    assert engines["search"]["predicted_us"] <= engines["rules"]["predicted_us"]
    assert numbers["trials"] >= 2
    assert Plan.load(names[1]).tensors == Plan.from_json(json.dumps(
        {"version": 1, **numbers["plan"]})).tensors  # fmt: skip
    assert fuseq.load(names[0]).producer_name == "fuseq"
    assert Path(names[2]).is_file()


def test_tables_name_what_is_predicted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_command(model, "search", "--trials", "4")) == 0
    shown = capsys.readouterr().out
    assert "moves accepted" in shown
    assert "predicted for tensorrt:sm80" in shown
    assert run(_command(model, "sensitivity")) == 0
    assert "saved us" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--budget", "-1"], "--budget -1.0 is no time"),
        (["--trials", "0"], "--trials 0 leaves nothing"),
        (["--executor", "ssh"], "--executor 'ssh' is unknown"),
        (["--min-cosine", "2"], "--min-cosine 2.0 is out of range"),
        (["--metric", "a:b"], "--metric and --max-drop belong together"),
        (["--min-cosine", "0.9", "--curve-out", "a.png"], "ends in .svg or .json"),
    ],
)
def test_options_are_refused_in_one_line(
    model: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    assert run(_command(model, "search", *more)) == 2
    error = capsys.readouterr().err
    assert words in " ".join(error.split())
    assert "Traceback" not in error


def test_no_model_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.onnx"
    assert run(_command(missing, "search", "--trials", "4")) == 2
    assert "does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
