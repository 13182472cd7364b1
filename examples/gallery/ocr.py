"""PP-OCR's three networks (rapidocr-onnxruntime's ONNX files) on text that is rendered here.

    pip install --group gallery && pip install --no-deps rapidocr-onnxruntime==1.4.4
    python examples/gallery/ocr.py --out gallery-out

Recognition is judged by characters that are read right, direction by lines that are recognized as upright
or upside down, detection by the text pixels that it finds. Calibrated on other lines of other words.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from packages import installed
from rows import Feeds, Model
from tables import main
from text_images import FONTS, Line, edit_distance, line_input, lines

SENTENCES = Path(__file__).parents[1] / "sentences.txt"
BATCH, WIDTH = 8, 320
DIRECTION_WIDTH, PAGE_PX = 192, 320
THRESHOLD = 0.3
"""Probability from which a pixel counts as text, as in PP-OCR's configuration."""


def models(out: Path) -> Sequence[Model]:
    """Recognition, direction, detection."""
    del out  # the files are in the package
    even, odd = _words()
    calib, judged = lines(odd, 48, seed=1), lines(even, 240, seed=2)
    return [_recognition(calib, judged), _direction(calib, judged), _detection(calib, judged)]


def read_text(probabilities: np.ndarray, alphabet: list[str]) -> str:
    """The greedy reading of one line, [time, classes]: repeats merged, blanks (class 0) dropped; no
    spaces at the ends, which margins are read as."""
    best = probabilities.argmax(-1)
    kept = best[np.flatnonzero(np.diff(best, prepend=-1))]
    return "".join(alphabet[index] for index in kept if index).strip()


def _recognition(calib: list[Line], judged: list[Line]) -> Model:
    file = _file("ch_PP-OCRv4_rec_infer.onnx")
    alphabet = _alphabet(file)

    def judge(outputs: list[Feeds]) -> float:
        (name,) = outputs[0]
        read = [read_text(line, alphabet) for batch in outputs for line in batch[name]]
        wrong = [edit_distance(line.text, text) for line, text in zip(judged, read, strict=True)]
        characters = sum(len(line.text) for line in judged)
        return 100 * (1 - sum(wrong) / characters)

    return Model(
        "ppocr_recognition", file, {"x": (BATCH, 3, 48, WIDTH)}, _batches(calib, WIDTH),
        _batches(judged, WIDTH),
        f"characters read right, {len(judged)} lines in {len(FONTS)} fonts", judge,
    )  # fmt: skip


def _direction(calib: list[Line], judged: list[Line]) -> Model:
    turned = np.arange(len(judged)) % 2

    def judge(outputs: list[Feeds]) -> float:
        (name,) = outputs[0]
        said = np.concatenate([batch[name] for batch in outputs]).argmax(-1)
        return 100 * float((said == turned).mean())

    return Model(
        "ppocr_direction", _file("ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        {"x": (BATCH, 3, 48, DIRECTION_WIDTH)}, _batches(_half_turned(calib), DIRECTION_WIDTH),
        _batches(_half_turned(judged), DIRECTION_WIDTH), "lines whose direction is told right", judge,
    )  # fmt: skip


def _detection(calib: list[Line], judged: list[Line]) -> Model:
    """Judged by the intersection over union of text pixels with those that FP32 finds."""
    file = _file("ch_PP-OCRv4_det_infer.onnx")
    pages = _pages(judged, 12)
    exact: list[np.ndarray] = []

    def judge(outputs: list[Feeds]) -> float:
        (name,) = outputs[0]
        text = [batch[name] > THRESHOLD for batch in outputs]
        if not exact:  # the float model is judged first
            exact.extend(text)
        both = sum(int((one & other).sum()) for one, other in zip(exact, text, strict=True))
        either = sum(int((one | other).sum()) for one, other in zip(exact, text, strict=True))
        return 100 * both / either

    return Model(
        "ppocr_detection", file, {"x": (1, 3, PAGE_PX, PAGE_PX)}, _pages(calib, 6), pages,
        "text pixels as in FP32 (intersection over union)", judge,
    )  # fmt: skip


def _pages(made: list[Line], count: int) -> list[Feeds]:
    """Pages of lines under each other on grey paper; float32 [1, 3, PAGE_PX, PAGE_PX], -1 to 1."""
    rest, pages = list(made), []
    for index in range(count):
        page = np.full((PAGE_PX, PAGE_PX, 3), 150 + 8 * index, np.uint8)
        top = 8
        while rest and top < PAGE_PX - 70:
            pixels = rest.pop().pixels[:60, : PAGE_PX - 16]
            page[top : top + len(pixels), 8 : 8 + pixels.shape[1]] = pixels
            top += len(pixels) + 8
        blue_first = page[None, :, :, ::-1].transpose(0, 3, 1, 2)
        pages.append({"x": (blue_first / 127.5 - 1).astype(np.float32)})
    return pages


def _half_turned(made: list[Line]) -> list[Line]:
    return [
        Line(line.text, line.pixels[::-1, ::-1]) if i % 2 else line for i, line in enumerate(made)
    ]


def _batches(made: list[Line], width: int) -> list[Feeds]:
    inputs = np.stack([line_input(line.pixels, width) for line in made])
    return [{"x": inputs[i : i + BATCH]} for i in range(0, len(inputs), BATCH)]


def _words() -> tuple[list[str], list[str]]:
    """Words of the demo's sentences, one half to judge, the other to calibrate."""
    text = SENTENCES.read_text(encoding="utf-8")
    words = sorted({w for w in text.split() if w.isascii() and w.isalpha() and 2 < len(w) < 10})
    return words[::2], words[1::2]


def _alphabet(file: Path) -> list[str]:
    """Characters by class number, which the file carries; class 0 is the blank, the last the space."""
    properties = {one.key: one.value for one in onnx.load(file).metadata_props}
    return ["", *properties["character"].splitlines(), " "]


def _file(name: str) -> Path:
    return installed("rapidocr_onnxruntime", f"models/{name}")


if __name__ == "__main__":
    sys.exit(main(__doc__, models, "gallery-out"))
