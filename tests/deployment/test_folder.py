"""Stages in a folder: kept by content, redone when something changed, whole after any kind of end."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from fuseq.deployment.folder import Folder, Stage, hash_file, key_of, open_folder
from fuseq.errors import ModelError

BEHIND = {"first": ("second",), "second": (), "other": ()}


def write(folder: Folder, name: str, inputs: object, text: str, made: list[str]) -> Stage:
    def make(work: Path) -> tuple[list[str], object]:
        made.append(name)
        (work / f"{name}.txt").write_text(text)
        return [f"{name}.txt"], {"length": (len(text), 0.5)}

    return folder.stage(name, inputs, make)


def test_a_stage_is_made_once(tmp_path: Path) -> None:
    made: list[str] = []
    for _ in range(2):
        with open_folder(tmp_path / "out", BEHIND) as folder:
            stage = write(folder, "first", {"a": 1}, "text", made)
    assert made == ["first"]
    assert stage == Stage(
        "first", key_of(["first", {"a": 1}]), {"first.txt": hash_file(tmp_path / "out/first.txt")},
        {"length": [4, 0.5]}, kept=True,
    )  # fmt: skip
    assert (tmp_path / "out/first.txt").read_text() == "text"


@pytest.mark.parametrize("damage", ["changed", "missing", "record", "inputs"])
def test_what_changed_is_made_again(tmp_path: Path, damage: str) -> None:
    made: list[str] = []
    out = tmp_path / "out"
    with open_folder(out, BEHIND) as folder:
        write(folder, "first", 1, "text", made)
    if damage == "changed":
        (out / "first.txt").write_text("edited")
    elif damage == "missing":
        (out / "first.txt").unlink()
    elif damage == "record":
        (out / ".fuseq/first.json").write_text("{")
    with open_folder(out, BEHIND) as folder:
        write(folder, "first", 2 if damage == "inputs" else 1, "text", made)
    assert made == ["first", "first"]
    assert (out / "first.txt").read_text() == "text"


def test_what_stands_behind_goes_first_and_the_rest_stays(tmp_path: Path) -> None:
    made: list[str] = []
    out = tmp_path / "out"
    with open_folder(out, BEHIND) as folder:
        for name in BEHIND:
            write(folder, name, 1, name, made)
    with open_folder(out, BEHIND) as folder:
        write(folder, "first", 2, "new", made)
        assert not (out / "second.txt").exists()
        assert (out / "other.txt").exists()
        write(folder, "second", 1, "second", made)
        assert write(folder, "other", 1, "other", made).kept
    assert made == [*BEHIND, "first", "second"]


def test_an_interrupt_leaves_what_was_finished(tmp_path: Path) -> None:
    made: list[str] = []

    def interrupted(work: Path) -> tuple[list[str], object]:
        (work / "second.txt").write_text("half")
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt), open_folder(out, BEHIND) as folder:
        write(folder, "first", 1, "text", made)
        folder.stage("second", 1, interrupted)
    assert sorted(p.name for p in out.iterdir()) == [".fuseq", "first.txt"]
    assert sorted(p.name for p in (out / ".fuseq").iterdir()) == ["first.json", "lock"]
    with open_folder(out, BEHIND) as folder:
        assert write(folder, "first", 1, "text", made).kept


def _slow(out: Path, started: Path) -> None:
    def make(work: Path) -> tuple[list[str], object]:
        (work / "second.txt").write_text("half")
        started.touch()
        time.sleep(60)
        return ["second.txt"], None

    with open_folder(out, BEHIND) as folder:
        write(folder, "first", 1, "text", [])
        folder.stage("second", 1, make)


def test_kill_9_leaves_no_half_file(tmp_path: Path) -> None:
    out, started = tmp_path / "out", tmp_path / "started"
    process = multiprocessing.get_context("spawn").Process(target=_slow, args=(out, started))
    process.start()
    while not started.exists():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [p.name for p in out.iterdir() if p.name != ".fuseq"] == ["first.txt"]
    made: list[str] = []
    with open_folder(out, BEHIND) as folder:  # the lock went with the process
        assert not list((out / ".fuseq").glob("work-*"))
        assert write(folder, "first", 1, "text", made).kept
        write(folder, "second", 1, "whole", made)
    assert (out / "second.txt").read_text() == "whole"


def _together(out: Path, log: Path, gate: Barrier) -> None:
    made: list[str] = []
    gate.wait(60)
    with open_folder(out, BEHIND) as folder:
        with log.open("a") as lines:
            lines.write("in\n")
        write(folder, "first", 1, "text", made)
        time.sleep(0.05)
        with log.open("a") as lines:
            lines.write(f"out {len(made)}\n")


def test_two_at_once_work_one_after_the_other(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    arguments = (tmp_path / "out", log, spawn.Barrier(3))
    processes = [spawn.Process(target=_together, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = log.read_text().splitlines()
    assert lines == ["in", "out 1", "in", "out 0", "in", "out 0"]


def test_who_waits_is_told(tmp_path: Path) -> None:
    out, started = tmp_path / "out", tmp_path / "started"
    process = multiprocessing.get_context("spawn").Process(target=_slow, args=(out, started))
    process.start()
    while not started.exists():
        time.sleep(0.01)
    told = []

    def waiting() -> None:
        told.append(True)
        process.kill()

    with open_folder(out, BEHIND, waiting):
        assert told == [True]
    process.join()


def test_a_strange_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.png").touch()
    with pytest.raises(ModelError, match="holds files that are not of `fuseq deploy`"):
        open_folder(tmp_path / "photos", BEHIND).__enter__()
    with pytest.raises(ModelError, match="is a file"):
        open_folder(tmp_path / "photos/cat.png", BEHIND).__enter__()
    with pytest.raises(ModelError, match="cannot be made"):
        open_folder(tmp_path / "no/such/place", BEHIND).__enter__()


def test_a_record_that_names_files_elsewhere_counts_for_nothing(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside.txt"
    outside.write_text("mine")
    with open_folder(out, BEHIND):
        record = {
            "version": 1, "stage": "first", "key": key_of(["first", 1]),
            "files": {"../outside.txt": hash_file(outside)}, "result": None,
        }  # fmt: skip
        (out / ".fuseq/first.json").write_text(json.dumps(record))
    made: list[str] = []
    with open_folder(out, BEHIND) as folder:
        write(folder, "first", 1, "text", made)
    assert made == ["first"]
    assert outside.read_text() == "mine"
