"""Trials on disk: whole or not at all, once, damaged files ignored."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from fuseq.errors import OptionError
from fuseq.targets.base import Engine, Kernel, KernelType, TensorInfo
from fuseq.trials import cache
from fuseq.trials.outcome import Outcome

KEY = "a" * 64


def _outcome(us: float = 3.5) -> Outcome:
    data = TensorInfo("t", (1, 2), "fp16", 4)
    kernel = Kernel("k", KernelType.GEMM, "gemm", (data,), (data,), 7, 8, "int8", ("n",), (), us)
    return Outcome(Engine("t:x", (kernel,), None, 99, 0.25), {"q": ("r", "s")}, "", 1.25)


def test_an_outcome_comes_back_equal(tmp_path: Path) -> None:
    cache.write(tmp_path, KEY, _outcome())
    assert cache.read(tmp_path, KEY) == _outcome()


def test_a_refusal_comes_back_with_the_compilers_words(tmp_path: Path) -> None:
    cache.write(tmp_path, KEY, Outcome(None, {}, "node 'x': no kernel", 0.5))
    found = cache.read(tmp_path, KEY)
    assert found is not None
    assert found.engine is None
    assert found.refusal == "node 'x': no kernel"


@pytest.mark.parametrize("content", [b"", b"not gzip", b"\x1f\x8b\x08\x00broken"])
def test_a_damaged_file_is_a_trial_that_has_not_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{KEY}.json.gz").write_bytes(content)
    assert cache.read(tmp_path, KEY) is None


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    assert cache.once(tmp_path, KEY, _outcome) == _outcome()
    again = cache.once(tmp_path, KEY, lambda: pytest.fail("ran twice"))
    assert again == _outcome()
    assert cache.compiled_keys(tmp_path) == [KEY]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{KEY}.json.gz", cache.LOG_NAME]


def _slow(folder: str, gate: Barrier) -> None:
    gate.wait(60)

    def run() -> Outcome:
        import time  # noqa: PLC0415

        time.sleep(0.3)
        return _outcome(float(os.getpid()))

    cache.once(Path(folder), KEY, run)


def test_two_processes_that_want_one_trial_run_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(3)
    both = [context.Process(target=_slow, args=(str(tmp_path), gate)) for _ in range(3)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert cache.compiled_keys(tmp_path) == [KEY]


def test_a_trial_that_fails_leaves_nothing_and_can_run_again(tmp_path: Path) -> None:
    def broken() -> Outcome:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        cache.once(tmp_path, KEY, broken)
    assert cache.compiled_keys(tmp_path) == []
    assert cache.once(tmp_path, KEY, _outcome) == _outcome()


def test_the_folder_is_beside_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.default_folder(tmp_path / "out.onnx") == tmp_path / ".fuseq-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.default_folder(None) == tmp_path / "xdg" / "fuseq"


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"--cache .*cannot be made"):
        cache.open_folder(tmp_path / "file" / "folder")
