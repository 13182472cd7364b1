"""A real Dask cluster on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def dask_cluster() -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers as processes of their own; gives the address and the workers."""
    distributed = pytest.importorskip("distributed")
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    port = _free_port()
    address = f"127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [
        subprocess.Popen([*command, "--port", str(port), "--no-dashboard"], **quiet)  # type: ignore[call-overload]
    ]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://{address}"]
    for _ in range(2):
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        processes.append(subprocess.Popen([*worker, *options], **quiet))  # type: ignore[call-overload]
    with distributed.Client(f"tcp://{address}", timeout=20) as client:
        client.wait_for_workers(2, timeout=20)
    yield address, processes[1:]
    for process in processes:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
