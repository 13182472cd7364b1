"""Lines of text rendered in several fonts, sizes and amounts of noise: input for text recognition."""

from __future__ import annotations

import dataclasses
import string
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from packages import installed

FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "DejaVuSansMono", "DejaVuSansMono-Bold", "STIXGeneral",
    "STIXGeneralItalic", "cmr10", "cmss10",
)  # fmt: skip
SIZES_PX = (16, 22, 30, 44)
NOISES = (0.0, 8.0, 20.0)
"""Standard deviation of the noise of each pixel, of 255."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A rendered line: ``pixels`` [height, width, 3] uint8."""

    text: str
    pixels: np.ndarray


def lines(words: list[str], count: int, seed: int) -> list[Line]:
    """``count`` lines of one to three words or numbers; fonts, sizes and noises take turns."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        text = _text(words, rng)
        font = ImageFont.truetype(_font(FONTS[index % len(FONTS)]), SIZES_PX[index % len(SIZES_PX)])
        made.append(Line(text, _render(text, font, NOISES[int(rng.integers(len(NOISES)))], rng)))
    return made


def line_input(image: np.ndarray, width: int) -> np.ndarray:
    """A line as PP-OCR wants it: float32 [3, 48, width], -1 to 1, blue first, zeros on the right."""
    height = 48
    scaled = min(width, round(image.shape[1] * height / image.shape[0]))
    resized = Image.fromarray(image).resize((scaled, height), Image.Resampling.BILINEAR)
    made = np.zeros((3, height, width), np.float32)
    made[:, :, :scaled] = (np.asarray(resized, np.float32)[:, :, ::-1] / 127.5 - 1).transpose(
        2, 0, 1
    )
    return made


def edit_distance(one: str, other: str) -> int:
    """Levenshtein's: insertions, deletions and replacements that make ``other`` of ``one``."""
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


def _text(words: list[str], rng: np.random.Generator) -> str:
    parts = []
    for _ in range(int(rng.integers(1, 3))):
        if rng.random() < 0.25:
            parts.append("".join(rng.choice(list(string.digits), int(rng.integers(3, 7)))))
        else:
            word = str(rng.choice(words))
            parts.append(word.upper() if rng.random() < 0.15 else word)
    return " ".join(parts)


def _render(
    text: str, font: ImageFont.FreeTypeFont, noise: float, rng: np.random.Generator
) -> np.ndarray:
    left, top, right, bottom = font.getbbox(text)
    margin = round(float(font.size) * 0.25)
    size = (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin)
    paper, ink = rng.integers(170, 256, 3), rng.integers(0, 90, 3)
    if rng.random() < 0.3:
        paper, ink = ink, paper
    image = Image.new("RGB", size, tuple(map(int, paper)))
    ImageDraw.Draw(image).text((margin - left, margin - top), text, tuple(map(int, ink)), font)
    pixels = np.asarray(image, np.float32) + rng.normal(0.0, noise + 1e-9, (*size[::-1], 3))
    return pixels.clip(0, 255).astype(np.uint8)


def _font(name: str) -> Path:
    return installed("matplotlib", f"mpl-data/fonts/ttf/{name}.ttf")
