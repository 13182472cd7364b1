"""Calibration source from a folder of images."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Batch, Source
from fuseq.calibration.cut import padding_note, repeated, samples_per_batch
from fuseq.calibration.fit import fit
from fuseq.calibration.image_pixels import normalized, read_image
from fuseq.calibration.image_presets import ImagePreset, image_preset
from fuseq.errors import CalibrationError, MissingExtraError
from fuseq.model import InputSpec

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


@dataclasses.dataclass(frozen=True)
class _Form:
    """What the model wants: its input, axes, height and width, and rows of a batch."""

    spec: InputSpec
    layout: str
    size: tuple[int, int]
    rows: int
    is_fixed: bool


def image_source(
    folder: Path,
    files: Sequence[Path],
    specs: Sequence[InputSpec],
    preset: ImagePreset | None,
    limit: int | None,
) -> Source:
    """Open image files, which are read one batch at a time.

    With a ``limit`` the images are taken at equal distances from the sorted list, so that a
    folder of classes gives all classes. A uint8 input gets pixels as they are.

    Args:
        folder: Where they lie, for messages.
        files: Image files, sorted.
        specs: The model's inputs: one, of rank 4, with 1 or 3 channels.
        preset: None is ``imagenet``, with a note.
        limit: Largest number of images.

    Raises:
        MissingExtraError: Pillow is not installed.
        CalibrationError: The model does not take images, or not with this preset.
    """
    if importlib.util.find_spec("PIL") is None:
        raise MissingExtraError("Pillow, which reads images,", "images")
    chosen = list(files)
    if limit is not None and limit < len(chosen):
        chosen = [chosen[index * len(chosen) // limit] for index in range(limit)]
    prepared = preset or image_preset("imagenet")
    form = _form(specs, prepared)
    prepared = _matched_channels(prepared, form)
    count = math.ceil(len(chosen) / form.rows)
    source = Source(f"{len(chosen)} images of {folder}", lambda: iter(()), count, keep=True)
    source.make = lambda: _batches(chosen, form, prepared, source)
    if preset is None:
        source.note(
            "images are prepared as preset 'imagenet'; if the model was trained otherwise, name "
            "another preset or give mean, std and size."
        )
    if form.spec.dtype == ir.DataType.UINT8:
        source.note("the input is uint8: pixels are given as they are, without mean and std.")
    if form.is_fixed and len(chosen) % form.rows:
        source.note(padding_note(str(folder)))
    return source


def image_files(folder: Path) -> list[Path]:
    """Image files of a folder and its subfolders, sorted; hidden ones and links to folders are not followed."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(root, name)
            for name in names
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
        ]
    return sorted(found)


def _batches(
    files: Sequence[Path], form: _Form, preset: ImagePreset, source: Source
) -> Iterator[Batch]:
    for start in range(0, len(files), form.rows):
        chosen = files[start : start + form.rows]
        pixels = np.stack([read_image(file, preset, form.size) for file in chosen])
        if form.is_fixed:
            pixels = repeated(pixels, form.rows)
        array = pixels if form.spec.dtype == ir.DataType.UINT8 else normalized(pixels, preset)
        if form.layout == "NCHW":
            array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
        array = array.astype(form.spec.dtype.numpy(), copy=False)
        yield fit({form.spec.name: array}, [form.spec], str(chosen[0]), source.note)


def _form(specs: Sequence[InputSpec], preset: ImagePreset) -> _Form:
    if len(specs) != 1 or specs[0].shape is None or len(specs[0].shape) != 4:
        found = ", ".join(f"{spec.name} {list(spec.shape or ())}" for spec in specs)
        raise CalibrationError(
            f"a folder of images fits a model with one input of rank 4, this model has {found}; "
            "give .npz files or a module:function."
        )
    spec = specs[0]
    batch, *sides = spec.shape or ()
    layout = preset.layout or _layout(sides)
    height, width = sides[1:] if layout == "NCHW" else sides[:2]
    size = (
        height if isinstance(height, int) else preset.size[0],
        width if isinstance(width, int) else preset.size[1],
    )
    fixed = isinstance(batch, int)
    rows = batch if isinstance(batch, int) else samples_per_batch(3 * size[0] * size[1])
    return _Form(spec, layout, size, rows, fixed)


def _layout(sides: Sequence[int | str]) -> str:
    """Channels are the axis of 1 or 3; where that does not tell, NCHW, as most exporters write."""
    return "NHWC" if sides[2] in (1, 3) and sides[0] not in (1, 3) else "NCHW"


def _matched_channels(preset: ImagePreset, form: _Form) -> ImagePreset:
    """Give a model of one channel grey images."""
    shape = form.spec.shape or ()
    channels = shape[1] if form.layout == "NCHW" else shape[3]
    wanted = 1 if preset.channels == "L" else 3
    if not isinstance(channels, int) or channels == wanted:
        return preset
    if channels == 1 and len(preset.mean) == len(preset.std) == 1:
        return dataclasses.replace(preset, channels="L")
    raise CalibrationError(
        f"input {form.spec.name!r} takes {channels} channels ({list(shape)} as {form.layout}), "
        f"preset {preset.name!r} makes {wanted}; choose the layout, or give channels, mean and std "
        "that fit."
    )
