"""Hashes of what goes into a deployment: the model with its external data, the calibration data."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import fuseq
from fuseq.calibration.batches import Source
from fuseq.calibration.functions import function_named
from fuseq.deployment.folder import hash_file
from fuseq.model import weight_files

_PACKAGES = (
    "numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "tensorrt-rtx-cu13-libs", "pillow",
)  # fmt: skip
"""Packages whose version can change a result."""


def versions() -> dict[str, str]:
    """Version by package, of those that are installed."""
    found = {"fuseq": fuseq.__version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def model_content(path: Path, model: ir.Model) -> list[str]:
    """Hashes of the file and of the external files that ``model``, read from it, points to.

    A folder, which holds a checkpoint: name and hash of each of its files.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        return [text for file in files for text in (file.name, hash_file(file))]
    data = {file.resolve() for file in weight_files(model).values()}
    return [hash_file(path), *(hash_file(file) for file in sorted(data))]


def data_content(given: object, source: Source) -> Any:
    """What stands for calibration data in a key.

    1. A file: its hash. A folder: name and hash of every file in it.
    2. ``random``: the word; its seed and limit are options.
    3. A function or an object: the hash of every batch that it gives, which reads it once more.
    """
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if path.is_file():
            return hash_file(path)
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            return [[str(file.relative_to(path)), hash_file(file)] for file in files]
        if os.fspath(given) == "random":
            return "random"
    return _batches_content(source)


def metric_content(metric: str | None) -> list[str | None]:
    """What stands for ``module:function`` in a key: its name, and the hash of the file it is in.

    Raises:
        CalibrationError: It cannot be imported.
    """
    if metric is None:
        return [None]
    file = inspect.getsourcefile(function_named(metric, "--metric"))
    return [metric, hash_file(Path(file)) if file is not None else None]


def _batches_content(batches: Iterable[Mapping[str, np.ndarray]]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        for name, array in batch.items():
            digest.update(f"{name}|{array.dtype}|{array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
