"""Trials on disk, by content: atomic files, safe for runs side by side, resumable after a kill.

A trial's file is ``<key>.json.gz``, where the key hashes everything that decides the engine
(:mod:`fuseq.trials.keys`). Cases:

1. Two processes want the same trial: the second waits on the first's lock, then reads its file.
2. A process is killed in a trial: the system drops its lock, and nothing was written.
3. A search is killed and its worker lives on: the worker ends its trial and writes it; the search
   that is run again waits for it as in case 1. So no trial is compiled twice.
4. A file is damaged: it is ignored, and the trial runs again.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from fuseq.errors import OptionError
from fuseq.model import whole_file
from fuseq.trials.outcome import Outcome

LOG_NAME = "compiled.log"
"""One line for each trial that was really compiled: its key. Appended, never rewritten."""

_KEY = re.compile(r"[0-9a-f]{64}")
_MAX_BYTES = 64 * 2**20


def default_folder(beside: str | os.PathLike[str] | None) -> Path:
    """``.fuseq-cache`` beside the output; without one in the user's cache folder (XDG)."""
    if beside is not None:
        return Path(beside).parent / ".fuseq-cache"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "fuseq"


def open_folder(folder: Path) -> Path:
    """Make the cache folder.

    Raises:
        OptionError: It cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"--cache {folder}: cannot be made ({error.strerror}); choose another folder."
        ) from error
    if not os.access(folder, os.W_OK):
        raise OptionError(f"--cache {folder}: is not writable; choose another folder.")
    return folder


def read(folder: Path, key: str) -> Outcome | None:
    """The trial's outcome; None where it has not run, or its file is damaged (case 4)."""
    file = _file(folder, key)
    try:
        with gzip.open(file, "rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error):
        return None
    return Outcome.from_json(content.decode("utf-8", errors="replace"))


def write(folder: Path, key: str, outcome: Outcome) -> None:
    """Write a trial whole or not at all."""
    content = gzip.compress(outcome.to_json().encode(), compresslevel=3, mtime=0)
    with whole_file(_file(folder, key)) as beside:
        beside.write_bytes(content)


def once(folder: Path, key: str, run: Callable[[], Outcome]) -> Outcome:
    """The trial's outcome, run only if nobody has (cases 1 to 3)."""
    with _locked(folder / f"{key}.lock"):
        found = read(folder, key)
        if found is not None:
            return found
        outcome = run()
        write(folder, key, outcome)
        _log(folder, key)
    return outcome


def compiled_keys(folder: Path) -> list[str]:
    """Keys of all trials compiled into this folder, in order; one compiled twice is there twice."""
    file = folder / LOG_NAME
    return file.read_text(encoding="ascii").split() if file.is_file() else []


def _file(folder: Path, key: str) -> Path:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a trial's key")
    return folder / f"{key}.json.gz"


def _log(folder: Path, key: str) -> None:
    handle = os.open(folder / LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, f"{key}\n".encode("ascii"))  # one write: lines of two processes stay whole
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold an advisory lock; where the system has none (Windows) two runs may do the same trial."""
    try:
        import fcntl  # noqa: PLC0415 (POSIX only)
    except ImportError:
        yield
        return
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
    finally:
        os.close(handle)
