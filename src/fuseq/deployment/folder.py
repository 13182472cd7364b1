"""The folder that ``fuseq deploy`` fills: finished stages are kept, and no file is ever half there.

A stage writes into a work folder inside ``DIR/.fuseq``; when it is done its files are renamed into
DIR and a record is written: the key of what went in, the SHA-256 of every file that came out, and the
stage's numbers. A record counts only while its key and all its files are unchanged. So:
1. An interrupt, or ``kill -9``, leaves the finished stages; a work folder is thrown away by the
   next run.
2. When a stage is done again, the files and records of the stages behind it go first: what lies in
   DIR always belongs together.
3. One process works in DIR at a time (``flock``, which ends with the process); another waits, and
   then finds the stages done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fuseq.errors import ModelError
from fuseq.model import whole_file

_STATE = ".fuseq"
_RECORD_VERSION = 1
_BLOCK_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Stage:
    """One finished stage.

    Attributes:
        name: Its name.
        key: Hash of what went in.
        files: SHA-256 by file name in the folder.
        result: Its numbers, plain JSON data.
        kept: It was found done, not done now.
    """

    name: str
    key: str
    files: Mapping[str, str]
    result: Any
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder that this process has locked.

    Attributes:
        path: Where it is.
        behind: For each stage, the stages whose results say something about its result.
    """

    path: Path
    behind: Mapping[str, Sequence[str]]

    def stage(
        self, name: str, inputs: Any, make: Callable[[Path], tuple[Sequence[str], Any]]
    ) -> Stage:
        """Give the stage's result: the kept one if nothing changed, else ``make`` it.

        Args:
            name: A key of ``behind``; the stages behind it are thrown away if it is made.
            inputs: Everything that the result depends on, plain JSON data.
            make: Gets an empty work folder; returns the names of the files it wrote there and its
                numbers, plain JSON data.
        """
        key = key_of([name, inputs])
        kept = self._kept(name, key)
        if kept is not None:
            return kept
        work = Path(tempfile.mkdtemp(prefix="work-", dir=self.path / _STATE))
        try:
            files, made = make(work)
            result = json.loads(
                json.dumps(made, allow_nan=False)
            )  # the same now as when it is kept
            hashes = {file: hash_file(work / file) for file in files}
            self._publish(name, key, work, hashes, result)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return Stage(name, key, hashes, result)

    def _publish(
        self, name: str, key: str, work: Path, hashes: Mapping[str, str], result: Any
    ) -> None:
        for other in (*self.behind[name], name):
            self._forget(other)
        for file in sorted(hashes, key=lambda file: not file.endswith(".data")):
            os.replace(work / file, self.path / file)  # weights before the model that names them
        record = {
            "version": _RECORD_VERSION, "stage": name, "key": key, "files": dict(hashes),
            "result": result,
        }  # fmt: skip
        with whole_file(self._record(name)) as beside:
            beside.write_text(json.dumps(record, allow_nan=False), encoding="utf-8")

    def _forget(self, name: str) -> None:
        for file in _files_of(self._read(name)):
            (self.path / file).unlink(missing_ok=True)
        self._record(name).unlink(missing_ok=True)

    def _kept(self, name: str, key: str) -> Stage | None:
        record = self._read(name)
        if record is None or record["key"] != key:
            return None
        for file, expected in record["files"].items():
            path = self.path / file
            if not path.is_file() or hash_file(path) != expected:
                return None
        return Stage(name, key, record["files"], record["result"], kept=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        """The record, None if there is none or it is damaged: then the stage is done again."""
        try:
            data = json.loads(self._record(name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        fits = (
            isinstance(data, dict)
            and data.get("version") == _RECORD_VERSION
            and isinstance(data.get("files"), dict)
            and all(_is_plain(file) for file in data["files"])
            and "key" in data
            and "result" in data
        )
        return data if fits else None

    def _record(self, name: str) -> Path:
        return self.path / _STATE / f"{name}.json"


@contextlib.contextmanager
def open_folder(
    path: str | os.PathLike[str],
    behind: Mapping[str, Sequence[str]],
    waiting: Callable[[], None] | None = None,
) -> Iterator[Folder]:
    """Make the folder if need be, and lock it.

    Args:
        path: The folder; its parent exists.
        behind: See :class:`Folder`.
        waiting: Called once if another process works in the folder.

    Raises:
        ModelError: It cannot be made or written, or it is a folder of something else.
    """
    folder = Path(path)
    _make(folder)
    with open(folder / _STATE / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in (*(folder / _STATE).glob("work-*"), *folder.glob(".fuseq-*")):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        for left in (folder / _STATE).glob(".fuseq-*"):
            left.unlink(missing_ok=True)
        yield Folder(folder, behind)


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def key_of(inputs: Any) -> str:
    """SHA-256 of plain JSON data; equal data have equal keys, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _make(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"--out {folder}: is a file; give a folder.")
    is_strange = folder.is_dir() and any(folder.iterdir()) and not (folder / _STATE).is_dir()
    if is_strange:
        raise ModelError(
            f"--out {folder}: holds files that are not of `fuseq deploy`; give an empty or a new folder."
        )
    try:
        folder.mkdir(exist_ok=True)
        (folder / _STATE).mkdir(exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"--out {folder}: cannot be made ({error.strerror or error}); choose another place."
        ) from error


def _files_of(record: Mapping[str, Any] | None) -> list[str]:
    return list(record["files"]) if record is not None else []


def _is_plain(name: Any) -> bool:
    """A file of the folder itself: a damaged record must not name one elsewhere."""
    return isinstance(name, str) and Path(name).name == name and name not in ("", ".", "..")
