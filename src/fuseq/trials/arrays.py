"""Arrays on disk beside the trials: written whole or not at all, and read as absent where damaged."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fuseq.model import whole_file


def write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file.

    Raises:
        ModelError: It cannot be written.
    """
    with whole_file(file) as beside, beside.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def read_arrays(file: Path) -> dict[str, np.ndarray] | None:
    """The arrays of an .npz file by name; None where it is gone or damaged."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError):
        return None
