"""What a project has decided: ``[tool.fuseq]`` of pyproject.toml, or fuseq.toml.

Searched from the current folder upwards, fuseq.toml before pyproject.toml; the first file with
settings counts. Options of the command line win.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from fuseq.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LISTS = ("select", "ignore", "target", "keep-float")
_MAX_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of ``fuseq check``.

    Attributes:
        select: Codes, or their beginnings, of rules that run; empty runs all.
        ignore: Codes, or their beginnings, of rules that do not.
        target: Targets to check for when ``--target`` is not given.
        keep_float: Globs of node or module names that are meant to stay float.
        gpu: GPU that predictions assume.
        batch: Size of a dynamic first axis.
        file: Where they come from; None for the defaults.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    keep_float: tuple[str, ...] = ()
    gpu: str | None = None
    batch: int | None = None
    file: Path | None = None


def find_settings(folder: Path) -> Settings:
    """Settings for work in ``folder``: of the nearest fuseq.toml or pyproject.toml that has some.

    Raises:
        OptionError: The file is not TOML, or a setting is unknown or has the wrong type.
    """
    for parent in (folder.resolve(), *folder.resolve().parents):
        for name in ("fuseq.toml", "pyproject.toml"):
            file = parent / name
            if file.is_file() and (found := _read(file)) is not None:
                return found
    return Settings()


def _read(file: Path) -> Settings | None:
    table: Any = _parse(file)
    if file.name == "pyproject.toml":
        tools = table.get("tool", {})
        table = tools.get("fuseq") if isinstance(tools, dict) else None
        if table is None:
            return None
    if not isinstance(table, dict):
        raise OptionError(f"{file}: [tool.fuseq] is no table; write keys and values below it.")
    return _checked(table, file)


def _parse(file: Path) -> dict[str, Any]:
    try:
        if not file.is_file():
            raise OptionError(f"{file}: is not a regular file; make it one or remove it.")
        if file.stat().st_size > _MAX_BYTES:
            raise OptionError(f"{file}: is larger than {_MAX_BYTES} bytes; settings are small.")
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{file}: cannot be read as TOML ({error}).") from error
    return table


def _checked(table: dict[str, Any], file: Path) -> Settings:
    values: dict[str, Any] = {"file": file}
    for key, value in table.items():
        if key in _LISTS:
            texts = [value] if isinstance(value, str) else value
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise OptionError(f"{file}: {key} is {value!r}; a list of texts is needed.")
            values[key.replace("-", "_")] = tuple(texts)
        elif type(value) is {"gpu": str, "batch": int}.get(key):
            values[key] = value
        else:
            allowed = ", ".join((*_LISTS, "gpu (text)", "batch (number)"))
            raise OptionError(f"{file}: {key} = {value!r} is no setting; allowed are {allowed}.")
    return Settings(**values)
