"""Outputs that another machine recorded, as a side of a comparison: no engine runs here.

1. ``.npz`` and ``.safetensors``: one array by name, axis 0 counts samples, in the order of the data.
   Any intermediate tensor that was dumped is compared too.
2. ``.json`` of ``trtexec --exportOutput``: ``[{"name": ..., "dimensions": "8x1000", "values": [...]}]``,
   one batch, of the inputs that ``--loadInputs`` fed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuseq.calibration.array_files import open_array_file
from fuseq.calibration.batches import Batch
from fuseq.errors import ModelError
from fuseq.evaluate.compare_side import RunBatch, Side, Value

RECORDED_SUFFIXES = (".json", ".npz", ".safetensors")
_LIMIT_BYTES = 512 * 2**20


def recorded_side(path: str | os.PathLike[str]) -> Side:
    """Open recorded outputs.

    Raises:
        ModelError: A JSON file that is not trtexec's.
        CalibrationError: An array file that is missing or damaged.
    """
    file = Path(path)
    if file.suffix.lower() == ".json":
        outputs = _trtexec_outputs(file)
        shapes = {name: array.shape for name, array in outputs.items()}
        return _side(file, shapes, lambda names: {name: outputs[name] for name in names})
    opened = open_array_file(file)
    shapes = {name: header.shape for name, header in opened.headers.items()}

    def read(names: Sequence[str]) -> Mapping[str, np.ndarray]:
        with opened.reading() as rows:
            return {name: rows(name, 0, shapes[name][0] if shapes[name] else 1) for name in names}

    return _side(file, shapes, read)


def _side(
    file: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[Sequence[str]], Mapping[str, np.ndarray]],
) -> Side:
    def open_values(names: Sequence[str], threads: int) -> RunBatch:
        arrays = read(names)
        next_row = 0

        def run(batch: Batch) -> list[np.ndarray]:
            nonlocal next_row
            rows = next((array.shape[0] for array in batch.values() if array.ndim), 1)
            start, next_row = next_row, next_row + rows
            return [_rows(arrays[name], start, rows, f"{file}: {name!r}") for name in names]

        return run

    return Side(
        label=file.name,
        runner="recorded",
        inputs=(),
        outputs=tuple(shapes),
        values=tuple(Value(name, "", "", (), "", "", True) for name in shapes),
        sizes=lambda batch: {name: 4 * math.prod(shape) for name, shape in shapes.items()},
        open=open_values,
        in_order=True,
    )


def _rows(array: np.ndarray, start: int, count: int, what: str) -> np.ndarray:
    if array.ndim and start + count > array.shape[0]:
        raise ModelError(
            f"{what} holds {array.shape[0]} rows and the data has more; give the samples that were "
            "recorded, in their order (--samples takes the first ones)."
        )
    return array[start : start + count] if array.ndim else array


def _trtexec_outputs(file: Path) -> dict[str, np.ndarray]:
    """Arrays by name of ``trtexec --exportOutput``."""
    if not file.is_file():
        raise ModelError(f"{file}: does not exist; give a file of `trtexec --exportOutput`.")
    if file.stat().st_size > _LIMIT_BYTES:
        raise ModelError(f"{file}: {file.stat().st_size} bytes; {_LIMIT_BYTES} are the most.")
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        arrays = {str(entry["name"]): _array(entry) for entry in entries}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ModelError(
            f"{file}: not what `trtexec --exportOutput` writes ({error!r}); write it again."
        ) from error
    if not arrays:
        raise ModelError(f"{file}: holds no output; run trtexec with --exportOutput again.")
    return arrays


def _array(entry: Mapping[str, Any]) -> np.ndarray:
    """``dimensions`` is ``8x1000``; a scalar has none."""
    shape = tuple(int(size) for size in str(entry["dimensions"]).split("x") if size)
    return np.asarray(entry["values"], dtype=np.float64).reshape(shape)
