"""Calibration sources from array files: one file of samples, or a folder with one batch a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fuseq.calibration.array_files import ArrayFile, Read, open_array_file
from fuseq.calibration.batches import Batch, Source
from fuseq.calibration.cut import Cut, cut_for, padding_note, pieces
from fuseq.calibration.fit import Note, check_names, check_shape, fit
from fuseq.errors import CalibrationError
from fuseq.model import InputSpec


def array_file_source(file: Path, specs: Sequence[InputSpec], limit: int | None) -> Source:
    """Open a file whose arrays have one sample a row of axis 0.

    Raises:
        CalibrationError: The file is damaged, or an array does not fit the model.
    """
    opened = open_array_file(file)
    names = _input_names(opened, specs, file)
    _check_headers(opened, names, specs, str(file))
    cut = _cut(opened, names, specs, str(file)).limited(limit)
    samples = next(iter(cut.total.values()), 1)
    source = Source(f"{samples} samples of {file}", lambda: iter(()), cut.count)
    if cut.is_padded:
        source.note(padding_note(str(file)))
    source.make = lambda: _batches(opened, names, specs, cut, file, source.note)
    return source


def array_folder_source(
    folder: Path, files: Sequence[Path], specs: Sequence[InputSpec], limit: int | None
) -> Source:
    """Open a folder where each file is one batch; shapes may differ between files.

    ``limit`` counts rows of axis 0 and is reached with the file that holds the last of them.

    Raises:
        CalibrationError: A file is damaged, or an array does not fit the model.
    """
    chosen, samples = [], 0
    for file in files:
        opened = open_array_file(file)
        names = _input_names(opened, specs, file)
        _check_headers(opened, names, specs, str(file))
        chosen.append((file, opened, names, _cut(opened, names, specs, str(file))))
        samples += next(iter(chosen[-1][3].total.values()), 1)
        if limit is not None and samples >= limit:
            break
    source = Source(
        f"{len(chosen)} files of {folder}", lambda: iter(()), sum(c.count for *_, c in chosen)
    )

    def make() -> Iterator[Batch]:
        for file, opened, names, cut in chosen:
            yield from _batches(opened, names, specs, cut, file, source.note)

    for file, *_, cut in chosen:
        if cut.is_padded:
            source.note(padding_note(str(file)))
    source.make = make
    return source


def _batches(
    opened: ArrayFile,
    names: dict[str, str],
    specs: Sequence[InputSpec],
    cut: Cut,
    file: Path,
    note: Note,
) -> Iterator[Batch]:
    with opened.reading() as read:
        scalars = {
            name: read(key, 0, 1) for name, key in names.items() if not opened.headers[key].shape
        }
        for number, batch in enumerate(pieces(cut, _renamed(read, names))):
            yield fit({**batch, **scalars}, specs, f"batch {number + 1} of {file}", note)


def _renamed(read: Read, names: dict[str, str]) -> Read:
    def renamed(name: str, start: int, stop: int) -> np.ndarray:
        return read(names[name], start, stop)

    return renamed


def _input_names(opened: ArrayFile, specs: Sequence[InputSpec], file: Path) -> dict[str, str]:
    """Array name by input name; the array of an .npy file belongs to the only input."""
    if set(opened.headers) == {""}:
        if len(specs) != 1:
            raise CalibrationError(
                f"{file}: a .npy file holds one array, the model has {len(specs)} inputs "
                f"({', '.join(spec.name for spec in specs)}); give an .npz or .safetensors file "
                "with an array for each."
            )
        return {specs[0].name: ""}
    check_names(opened.headers, specs, str(file))
    return {spec.name: spec.name for spec in specs}


def _check_headers(
    opened: ArrayFile, names: dict[str, str], specs: Sequence[InputSpec], where: str
) -> None:
    """Refuse what no batch can mend before anything is read; axis 0 is cut later."""
    for spec in specs:
        shape = opened.headers[names[spec.name]].shape
        loose = spec.shape if not spec.shape else ("samples", *spec.shape[1:])
        check_shape(shape, InputSpec(spec.name, spec.dtype, loose), where)


def _cut(opened: ArrayFile, names: dict[str, str], specs: Sequence[InputSpec], where: str) -> Cut:
    shapes = {name: opened.headers[key].shape for name, key in names.items()}
    return cut_for(shapes, specs, where)
