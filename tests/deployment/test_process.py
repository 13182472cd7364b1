"""A real process that is stopped in the middle, by Ctrl-C and by kill -9, and one that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.graphs import conv_net, normal

_RUN = "from fuseq.cli.main import main; main()"
_SLOW = """
import pathlib, time
import numpy as np

def batches():
    yield {"x": np.load("data.npy")[:1]}
    if not pathlib.Path("go").exists():
        pathlib.Path("waiting").touch()
        time.sleep(120)
"""


def deploy(folder: Path) -> subprocess.Popen[str]:
    arguments = [
        "deploy",
        "net.onnx",
        "--calib",
        "data.npy",
        "--data",
        "slow:batches",
        "--batch",
        "1",
    ]
    arguments += ["--target", "tensorrt:sm80", "--policy", "full", "--out", "out"]
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, *arguments], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_it_goes_on_where_it_was_stopped(tmp_path: Path, stop: signal.Signals, code: int) -> None:
    ir.save(conv_net(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", normal(3, 16, 8, 8, scale=1.0))
    (tmp_path / "slow.py").write_text(_SLOW)
    process = deploy(tmp_path)
    while not (tmp_path / "waiting").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    os.kill(process.pid, stop)
    error = process.communicate()[1]
    assert process.returncode == code
    assert "Traceback" not in error
    out = tmp_path / "out"
    done = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert set(done) == {"model.onnx", "float.onnx", "plan.json", "scales.safetensors"}
    (tmp_path / "go").touch()
    told, error = deploy(tmp_path).communicate()
    assert "first report.html" in told
    assert "kept from before: quantize, float-engine, engine" in error
    assert {name: (out / name).read_bytes() for name in done} == done
