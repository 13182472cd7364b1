"""Where trials run: here, in processes of this machine, or on a Dask cluster, all through joblib.

``serial``: in this process. ``processes`` or ``processes:N``: N worker processes, by default one for
each usable processor. ``dask://host:port``: the workers of a running Dask cluster, which need fuseq
with the target's compiler, and the model's file and the cache folder under the same paths.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from fuseq.errors import MissingExtraError, OptionError, TargetError

Result = TypeVar("Result")

_CRASHES_ALLOWED = 3
"""Times that a batch is given again after a worker died: memory runs short for a moment, or a
compiler crashed on one plan. What finished before is in the cache, so only the rest runs again."""


@dataclasses.dataclass(frozen=True)
class Executor:
    """Runs calls side by side and keeps their order.

    Attributes:
        kind: ``serial``, ``processes`` or ``dask``.
        jobs: Processes for ``processes``; for ``dask`` how many calls are given at once.
        address: Of the Dask scheduler, ``tcp://host:port``.
    """

    kind: str
    jobs: int
    address: str = ""

    @contextlib.contextmanager
    def opened(self) -> Iterator[Session]:
        """Connect; worker processes end with the block."""
        if self.kind == "dask":
            with _dask(self.address) as cluster:
                yield Session(self, cluster)
            return
        try:
            yield Session(self)
        finally:
            if self.kind == "processes":
                _end_processes()


@dataclasses.dataclass(frozen=True)
class Session:
    """An open executor; ``cluster`` is the Dask client."""

    executor: Executor
    cluster: Any = None

    @property
    def width(self) -> int:
        """Calls that run at once."""
        if self.cluster is None:
            return self.executor.jobs
        return max(sum(int(cores) for cores in self.cluster.ncores().values()), 1)

    def map(self, call: Callable[..., Result], tasks: Sequence[tuple[Any, ...]]) -> list[Result]:
        """``call(*task)`` for every task, in order.

        Raises:
            TargetError: Workers died again and again.
        """
        if self.executor.kind == "serial" or not tasks:
            return [call(*task) for task in tasks]
        return _parallel(self.executor, call, tasks)


def parse_executor(text: str) -> Executor:
    """Read ``--executor``.

    Raises:
        OptionError: Not one of ``serial``, ``processes``, ``processes:N``, ``dask://host:port``.
    """
    if text == "serial":
        return Executor("serial", 1)
    if text.startswith("dask://") and ":" in text[7:]:
        return Executor("dask", -1, f"tcp://{text[7:]}")
    name, _, number = text.partition(":")
    if name == "processes" and (not number or (number.isdigit() and int(number) > 0)):
        return Executor("processes", int(number) if number else usable_processors())
    raise OptionError(
        f"--executor {text!r} is unknown; write serial, processes, processes:4 or dask://host:8786."
    )


def usable_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _parallel(
    executor: Executor, call: Callable[..., Result], tasks: Sequence[tuple[Any, ...]]
) -> list[Result]:
    import joblib  # noqa: PLC0415
    from joblib.externals.loky.process_executor import TerminatedWorkerError  # noqa: PLC0415

    backend = "dask" if executor.kind == "dask" else "loky"
    for _ in range(_CRASHES_ALLOWED):
        try:
            with joblib.parallel_config(backend, n_jobs=executor.jobs):
                results: list[Result] = joblib.Parallel(batch_size=1)(
                    joblib.delayed(call)(*task) for task in tasks
                )
                return results
        except TerminatedWorkerError:
            continue
    raise TargetError(
        f"worker processes died {_CRASHES_ALLOWED} times in a row, out of memory or by a crash of "
        "the compiler; use --executor serial to see which, or fewer processes."
    )


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Any]:
    try:
        import distributed  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("Dask", "dask") from error
    try:
        client = distributed.Client(address, timeout=10, set_as_default=True)
    except OSError as error:
        raise OptionError(
            f"--executor {address.replace('tcp', 'dask', 1)}: no Dask scheduler answers there; "
            "start one with `dask scheduler` and workers with `dask worker`."
        ) from error
    try:
        yield client
    finally:
        client.close()


def _end_processes() -> None:
    from joblib.externals.loky import get_reusable_executor  # noqa: PLC0415

    get_reusable_executor().shutdown(wait=True)
