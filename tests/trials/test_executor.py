"""Executors keep order, say what is wrong in one sentence, and survive a worker that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fuseq.errors import OptionError
from fuseq.trials.executor import Executor, parse_executor, usable_processors


def _square(number: int) -> int:
    return number * number


def _dies_once(mark: str, number: int) -> int:
    if number == 1 and not Path(mark).exists():
        Path(mark).write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("text", ["serial", "processes:2"])
def test_results_come_in_the_order_of_the_tasks(text: str) -> None:
    with parse_executor(text).opened() as session:
        assert session.map(_square, [(n,) for n in range(5)]) == [0, 1, 4, 9, 16]


def test_what_can_be_written() -> None:
    assert parse_executor("processes") == Executor("processes", usable_processors())
    assert parse_executor("processes:3") == Executor("processes", 3)
    assert parse_executor("dask://host:8786") == Executor("dask", -1, "tcp://host:8786")


@pytest.mark.parametrize("text", ["", "threads", "processes:0", "processes:x", "dask://host"])
def test_anything_else_is_named_with_what_is_allowed(text: str) -> None:
    with pytest.raises(OptionError, match=r"write serial, processes, processes:4 or dask://"):
        parse_executor(text)


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    mark = str(tmp_path / "died")
    with parse_executor("processes:2").opened() as session:
        assert session.map(_dies_once, [(mark, n) for n in range(4)]) == [0, 1, 2, 3]
    assert Path(mark).exists()


def test_no_scheduler_is_one_sentence() -> None:
    pytest.importorskip("distributed")
    executor = Executor("dask", -1, "tcp://127.0.0.1:9")
    with pytest.raises(OptionError, match="no Dask scheduler answers"), executor.opened():
        pass


def _slow_square(folder: str, number: int) -> int:
    (Path(folder) / f"{number}-{os.getpid()}").write_text("")
    time.sleep(0.5)
    return number * number


def _kill_at_work(worker: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill it in the middle of its first task."""
    while not list(folder.glob(f"*-{worker.pid}")):
        time.sleep(0.02)
    worker.kill()


@pytest.mark.slow
def test_a_cluster_of_two_workers_of_which_one_is_killed(
    tmp_path: Path, dask_cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, workers = dask_cluster
    with parse_executor(f"dask://{address}").opened() as session:
        assert session.width == 2
        killing = threading.Thread(target=_kill_at_work, args=(workers[0], tmp_path))
        killing.start()
        tasks = [(str(tmp_path), n) for n in range(10)]
        assert session.map(_slow_square, tasks) == [n * n for n in range(10)]
        killing.join()
        assert session.width == 1
    pids = {int(mark.name.split("-")[1]) for mark in tmp_path.iterdir()}
    assert pids == {worker.pid for worker in workers}
