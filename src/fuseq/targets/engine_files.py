"""Tells a serialized engine from a model by its first bytes."""

from __future__ import annotations

from pathlib import Path

from fuseq.errors import ModelError

_KINDS = {b"ftrt": "tensorrt", b"ptrt": "tensorrt", b"vtrt": "tensorrt-rtx"}
"""First four bytes: of TensorRT 8 to 11 (``ptrt`` before), and of TensorRT-RTX 1.7, as found in files."""


def engine_kind(file: Path) -> str | None:
    """``tensorrt`` or ``tensorrt-rtx`` for a serialized engine, None for anything else.

    Raises:
        ModelError: The file cannot be read.
    """
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ModelError(f"{file}: {what}; give an ONNX file or an engine.")
    try:
        with file.open("rb") as opened:
            return _KINDS.get(opened.read(4))
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror or error}).") from error
