"""One image file to one array, as a preset says."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fuseq.calibration.image_presets import ImagePreset
from fuseq.errors import CalibrationError

if TYPE_CHECKING:
    from PIL import Image

_SIXTEEN_BITS = ("I", "F")
_ROWS = 64
_MOST_PIXELS = 2**27
"""Of an image resized to cover the crop: 0.4 GB in RGB."""


def read_image(file: Path, preset: ImagePreset, size: tuple[int, int]) -> np.ndarray:
    """Decode, turn upright (EXIF), fit to ``size`` and order the channels.

    Args:
        file: Any format that Pillow reads; grey images become three equal channels.
        preset: Its mean and std are not applied here.
        size: Height and width.

    Returns:
        uint8, shape ``(height, width, channels)``.

    Raises:
        CalibrationError: Broken, truncated, or so many pixels that Pillow suspects an attack.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415

    if not file.is_file():
        raise CalibrationError(
            f"{file}: not a regular file, or a link that leads nowhere; remove or replace it."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as opened:
                opened.load()
                upright = ImageOps.exif_transpose(opened)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise CalibrationError(
            f"{file}: {error}; make the image smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you "
            "trust it."
        ) from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise CalibrationError(
            f"{file}: not a readable image ({error}); remove or replace it."
        ) from error
    _check_sides(file, upright.size, preset, size)
    mode = "L" if preset.channels == "L" else "RGB"
    fitted = _fitted(_converted(upright, mode), preset, size)
    pixels = np.asarray(fitted, dtype=np.uint8).reshape(*size, -1)
    return pixels[..., ::-1] if preset.channels == "BGR" else pixels


def _check_sides(
    file: Path, sides: tuple[int, int], preset: ImagePreset, size: tuple[int, int]
) -> None:
    """Refuse an image so long that the resized one, whose short side covers the crop, were huge."""
    ratio = max(sides) / min(sides)
    pixels = ratio * (max(size) / preset.crop_ratio) ** 2
    if preset.fit not in ("stretch", "letterbox") and pixels > _MOST_PIXELS:
        raise CalibrationError(
            f"{file}: {sides[0]} by {sides[1]} pixels are too long a strip to be cropped; remove it, "
            "or choose a preset that letterboxes."
        )


def normalized(pixels: np.ndarray, preset: ImagePreset) -> np.ndarray:
    """``(pixels / 255 - mean) / std``: uint8 ``(..., channels)`` to float32 of the same shape."""
    std = np.asarray(preset.std, dtype=np.float32)
    factor = np.float32(1 / 255) / std
    offset = np.asarray(preset.mean, dtype=np.float32) / std
    return np.asarray(pixels.astype(np.float32) * factor - offset)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Convert to 8 bits; Pillow itself would clip 16-bit grey instead of scaling it."""
    from PIL import Image  # noqa: PLC0415

    if image.mode.startswith(_SIXTEEN_BITS):
        image = Image.fromarray(_eight_bits(np.asarray(image), image.mode.startswith("I")))
    return image.convert(mode)


def _eight_bits(levels: np.ndarray, is_integer: bool) -> np.ndarray:
    """Levels of 16 bits, or floats of 0 to 255, in uint8; a block of rows at a time, to save memory."""
    scale = 255 / 65535 if is_integer else 1.0
    found = np.empty(levels.shape, np.uint8)
    for start in range(0, len(levels), _ROWS):
        block = levels[start : start + _ROWS].astype(np.float64)
        found[start : start + _ROWS] = np.clip(block * scale, 0, 255)
    return found


def _fitted(image: Image.Image, preset: ImagePreset, size: tuple[int, int]) -> Image.Image:
    from PIL import Image  # noqa: PLC0415

    resample = Image.Resampling[preset.interpolation.upper()]
    height, width = size
    if preset.fit == "stretch":
        return image.resize((width, height), resample)
    if preset.fit == "letterbox":
        return _letterboxed(image, size, preset.pad, resample)
    return _cropped(image, size, preset.crop_ratio, resample)


def _cropped(image: Image.Image, size: tuple[int, int], ratio: float, resample: Any) -> Image.Image:
    """Resize so that ``size / ratio`` is just covered, then cut out the middle.

    For square sizes this is torchvision's Resize(size / ratio) and CenterCrop(size).
    """
    height, width = size
    covered_height, covered_width = int(height / ratio), int(width / ratio)
    grow = max(covered_width / image.width, covered_height / image.height)
    if image.width * covered_height <= image.height * covered_width:
        resized = (covered_width, max(int(image.height * grow), covered_height))
    else:
        resized = (max(int(image.width * grow), covered_width), covered_height)
    image = image.resize(resized, resample)
    left = round((resized[0] - width) / 2)
    top = round((resized[1] - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _letterboxed(image: Image.Image, size: tuple[int, int], pad: int, resample: Any) -> Image.Image:
    from PIL import Image  # noqa: PLC0415

    height, width = size
    shrink = min(width / image.width, height / image.height)
    inner = (max(1, round(image.width * shrink)), max(1, round(image.height * shrink)))
    fill: Any = pad if image.mode == "L" else (pad, pad, pad)
    canvas = Image.new(image.mode, (width, height), fill)
    # ultralytics rounds the halves of the border this way: the odd pixel goes right and below.
    left, top = round((width - inner[0]) / 2 - 0.1), round((height - inner[1]) / 2 - 0.1)
    canvas.paste(image.resize(inner, resample), (left, top))
    return canvas
