"""Where commands write: refused before the work when it would overwrite an input or fail after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuseq.errors import OptionError


def check_places(inputs: Sequence[str | None], outputs: dict[str, str | None]) -> None:
    """Refuse output files that are an input, one another, a folder, or in a folder that is not there.

    Args:
        inputs: Files that the command reads; None and what does not exist are left to their reader.
        outputs: Option to the file given for it, None where it was not given.

    Raises:
        OptionError: Names the option, the file and what to do.
    """
    given = {option: Path(text) for option, text in outputs.items() if text is not None}
    read = [Path(text) for text in inputs if text is not None and Path(text).exists()]
    taken: dict[Path, str] = {}
    for option, file in given.items():
        if file.exists() and any(file.samefile(each) for each in read):
            raise OptionError(f"{option} {file} is the input; the input is never overwritten.")
        if file.is_dir():
            raise OptionError(f"{option} {file} is a folder; give the path of a file.")
        if not file.parent.is_dir():
            raise OptionError(f"{option} {file}: the folder {file.parent} does not exist; make it.")
        other = taken.setdefault(file.resolve(), option)
        if other != option:
            raise OptionError(f"{other} and {option} are both {file}; give each its own file.")
