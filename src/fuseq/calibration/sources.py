"""Open a calibration source from what a user gives: a path, ``module:function``, ``random``, an object."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from fuseq.calibration.array_files import ARRAY_SUFFIXES
from fuseq.calibration.arrays import array_file_source, array_folder_source
from fuseq.calibration.batches import Source
from fuseq.calibration.functions import function_named, object_source
from fuseq.calibration.image_presets import ImagePreset
from fuseq.calibration.images import IMAGE_SUFFIXES, image_files, image_source
from fuseq.calibration.random_data import random_source
from fuseq.errors import CalibrationError
from fuseq.model import InputSpec, input_specs

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ACCEPTED = (
    "a folder of images or arrays, an .npy, .npz or .safetensors file, module:function, or random"
)


def open_source(
    given: Any,
    model: ir.Model,
    *,
    preset: ImagePreset | None = None,
    limit: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Source:
    """Open calibration data for ``model``.

    1. ``random``: made up, with a loud note.
    2. A folder: images (subfolders too), or array files, each of them one batch or more.
    3. A file .npy (models of one input), .npz or .safetensors: axis 0 counts samples.
    4. ``module:function``: a function whose items are dicts of input name and array.
    5. A Python object: such a function, or an iterable of such dicts.

    Args:
        given: Text, path or object.
        model: Whose inputs the data must fit.
        preset: How images are prepared; None is ``imagenet``, with a note.
        limit: Largest number of samples.
        shapes: Static shapes by input name, for ``random``.
        seed: Of ``random``.

    Raises:
        CalibrationError: Not found, not readable, or it does not fit the model.
        OptionError: ``random`` needs a shape that is not given.
        MissingExtraError: Images without Pillow.
    """
    specs = input_specs(model)
    if isinstance(given, Source):
        return given
    if not isinstance(given, str | os.PathLike):
        return object_source(given, specs, limit, f"a {type(given).__name__.lstrip('_')}")
    text = os.fspath(given)
    if text == "random":
        return random_source(model, shapes, seed, limit)
    path = Path(text)
    if path.is_dir():
        return _folder_source(path, specs, preset, limit)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return array_file_source(path, specs, limit)
    if path.is_file():
        hint = (
            "give its folder"
            if path.suffix.lower() in IMAGE_SUFFIXES
            else f"allowed are {_ACCEPTED}"
        )
        raise CalibrationError(f"{path}: a {path.suffix or 'nameless'} file is no source; {hint}.")
    if _FUNCTION.fullmatch(text):
        return object_source(function_named(text), specs, limit, text)
    raise CalibrationError(f"--calib {text!r} does not exist; give {_ACCEPTED}.")


def _folder_source(
    folder: Path, specs: Sequence[InputSpec], preset: ImagePreset | None, limit: int | None
) -> Source:
    arrays = sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in ARRAY_SUFFIXES and not file.name.startswith(".")
    )
    images = image_files(folder)
    if arrays and images:
        raise CalibrationError(
            f"{folder}: holds array files ({arrays[0].name}) and images ({images[0].name}); give a "
            "folder of one kind."
        )
    if not arrays and not images:
        raise CalibrationError(
            f"{folder}: no images ({', '.join(sorted(IMAGE_SUFFIXES))}) and no array files "
            f"({', '.join(ARRAY_SUFFIXES)}) in it; check the path."
        )
    if arrays:
        return array_folder_source(folder, arrays, specs, limit)
    return image_source(folder, images, specs, preset, limit)
