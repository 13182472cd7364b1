"""Every command with odd values for its own options: a result or one sentence, nothing outside the folder."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fuseq.cli.main import COMMANDS, app, run
from fuseq.model import save
from tests.graphs import conv_net

CASES = max(140, int(os.environ.get("FUSEQ_HOSTILE_CASES", "2000")) // 10)
LIMIT_S = 10.0
TARGET = "tensorrt:sm80"
VALUES = (
    "", "x", "-1", "0", "1", "2", "999999999999999999", "1e400", "nan", "inf", "\u00b2", "9" * 5000,
    "tensorrt:sm1", "tensorrt:sm80", "int8,fp8", "x:1,2", "x:", ":", "x:1,16,8,8", "/", "..",
    "/dev/null", "/dev/full", "[", "*", "\x1b[31m", "percentile:200", "entropy", "pays", "fp8", "random",
    "net.onnx", "other.onnx", "a\nb", "[bold]", "FQ1", "os:system", "os.path:join", "--", "~", "%s",
)  # fmt: skip
SOURCES = {
    "compare": ["net.onnx", "net.onnx", "--data", "random", "--limit", "2"],
    "bench": ["net.onnx", "--iterations", "2", "--warmup", "0"],
    "profile": ["net.onnx", "--runs", "1"],
    "search": [
        "net.onnx",
        "-o",
        "s.onnx",
        "--calib",
        "random",
        "--trials",
        "1",
        "--executor",
        "serial",
    ],
    "sensitivity": ["net.onnx", "--calib", "random", "--executor", "serial", "--cache", "cache"],
    "quantize": ["net.onnx", "-o", "q.onnx", "--calib", "random", "--policy", "full"],
    "deploy": ["net.onnx", "--calib", "random", "--out", "deployed", "--policy", "full"],
    "fix": ["net.onnx", "-o", "f.onnx"],
    "triton": ["net.onnx", "--out", "models"],
    "report": ["net.onnx", "-o", "page.html"],
    "doctor": [],
}

pytestmark = pytest.mark.slow


def options_of(name: str) -> list[click.Option]:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    return [each for each in command.params if isinstance(each, click.Option)]


def words(chance: random.Random, name: str) -> list[str]:
    """A command that would work, and up to three options with odd values behind it."""
    options = options_of(name)
    chosen = [name, *SOURCES.get(name, ["net.onnx"])]
    if any("--target" in option.opts for option in options) and chance.random() < 0.8:
        chosen += ["--target", TARGET]
    slow = ("--duration", "--trials", "--iterations", "--runs", "--rounds", "--workers")
    usable = [option for option in options if not set(option.opts) & set(slow)]
    for option in chance.sample(usable, min(len(usable), chance.randrange(4))):
        chosen.append(chance.choice(option.opts))
        if not option.is_flag:
            values = [*VALUES, *getattr(option.type, "choices", ())]
            chosen.append(str(chance.choice(values)))
    return chosen


def cases() -> Iterator[tuple[str, range]]:
    size = -(-CASES // len(COMMANDS))
    for name in COMMANDS:
        yield name, range(size)


@pytest.mark.parametrize(("name", "seeds"), list(cases()), ids=[name for name, _ in cases()])
def test_odd_options(
    name: str,
    seeds: range,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "inner"))
    save(conv_net(), "net.onnx")
    whole = Path("net.onnx").read_bytes()
    for seed in seeds:
        given = words(random.Random(f"{name} {seed}"), name)
        began = time.process_time()
        code = run(given)
        said = capfd.readouterr()
        assert code in (0, 1, 2), given
        assert time.process_time() - began < LIMIT_S, given
        assert "Traceback" not in said.err + said.out, (given, said.err[-800:])
        assert "\x1b[31m" not in said.out + said.err, given
        assert Path("net.onnx").read_bytes() == whole, given
        strays = {path.name for path in tmp_path.iterdir()} - {"inner"}
        assert not strays or ".." in given, given
