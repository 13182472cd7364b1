"""YOLOv8n (nudenet's ONNX file) on scikit-image's photos: the same boxes from float and quantized files.

    pip install --group gallery && pip install --no-deps nudenet==3.4.2
    python examples/gallery/detector.py --out gallery-out

The photos are crops of an astronaut's portrait, a cat, a cup of coffee, a motorcycle and a rocket; the class
that fires on them is a face. A detection agrees when the other file finds a box of the same class that
overlaps it by half; the share is of the detections of both, so that a false alarm counts as a miss does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from packages import installed
from rows import Feeds, Model, outputs_of
from tables import main

SIZE = 320
SCORE, OVERLAP = 0.25, 0.45
"""Least score of a detection, and the overlap from which the weaker of two boxes is dropped: YOLOv8's own."""
AGREE = 0.5
PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
Box = tuple[int, float, np.ndarray]
"""Class, score, corners [4] in pixels: left, top, right, bottom."""


def models(out: Path) -> Sequence[Model]:
    """The detector; the portrait with its boxes goes to ``detector.png``."""
    file = installed("nudenet", "320n.onnx")
    calib, judged = _crops(24, seed=1), _crops(80, seed=2)
    exact: list[list[Box]] = []

    def judge(outputs: list[Feeds]) -> float:
        found = [boxes(image) for batch in outputs for image in batch["output0"]]
        if not exact:  # the float model is judged first
            exact.extend(found)
            portrait = _as_input(_photo("astronaut.png"))
            answer = outputs_of(file, [{"images": portrait[None]}], as_written=False)
            _draw(portrait, boxes(answer[0]["output0"][0]), out / "detector.png")
        return 100 * agreement(exact, found)

    model = Model(
        "yolov8n", file, {"images": (1, 3, SIZE, SIZE)}, calib, judged,
        f"detections as in FP32, {len(judged)} crops of photos", judge,
    )  # fmt: skip
    return [model]


def boxes(output: np.ndarray) -> list[Box]:
    """Detections of one image, strongest first, after non-maximum suppression within a class.

    Args:
        output: [4 + classes, anchors]: centre and size in pixels, then a score for each class.
    """
    scores, classes = output[4:].max(0), output[4:].argmax(0)
    kept: list[Box] = []
    for anchor in np.argsort(-scores):
        if scores[anchor] < SCORE:
            break
        x, y, width, height = output[:4, anchor]
        corners = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
        same = (one for one in kept if one[0] == classes[anchor])
        if all(overlap(corners, one[2]) < OVERLAP for one in same):
            kept.append((int(classes[anchor]), float(scores[anchor]), corners))
    return kept


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two boxes."""
    size = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    both = float(np.prod(size.clip(min=0)))
    return both / (float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2])) - both)


def agreement(one: list[list[Box]], other: list[list[Box]]) -> float:
    """Share of the detections of both sides that the other side has too; 1 where there is none."""
    same = total = 0
    for ours, theirs in zip(one, other, strict=True):
        for some, rest in ((ours, theirs), (theirs, ours)):
            total += len(some)
            same += sum(
                any(box[0] == found[0] and overlap(box[2], found[2]) >= AGREE for found in rest)
                for box in some
            )
    return same / total if total else 1.0


def _crops(count: int, seed: int) -> list[Feeds]:
    """Squares of 45 to 100 % of a photo's shorter side, the portrait three times as often as the others."""
    rng = np.random.default_rng(seed)
    names = (*PHOTOS, PHOTOS[0], PHOTOS[0])
    made = []
    for index in range(count):
        photo = _photo(names[index % len(names)])
        side = round(min(photo.size) * rng.uniform(0.45, 1.0))
        left, top = (int(rng.integers(0, length - side + 1)) for length in photo.size)
        made.append({"images": _as_input(photo.crop((left, top, left + side, top + side)))[None]})
    return made


def _photo(name: str) -> Image.Image:
    return Image.open(installed("skimage", f"data/{name}")).convert("RGB")


def _as_input(photo: Image.Image) -> np.ndarray:
    """Float32 [3, SIZE, SIZE], 0 to 1."""
    pixels = np.asarray(photo.resize((SIZE, SIZE), Image.Resampling.BILINEAR), np.float32)
    return (pixels / 255).transpose(2, 0, 1)


def _draw(image: np.ndarray, found: list[Box], file: Path) -> None:
    picture = Image.fromarray((image.transpose(1, 2, 0) * 255).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for _, score, corners in found:
        pen.rectangle(tuple(corners), outline=(255, 60, 0), width=2)
        pen.text((corners[0] + 3, corners[1] + 2), f"{score:.2f}", fill=(255, 60, 0))
    picture.save(file)


if __name__ == "__main__":
    sys.exit(main(__doc__, models, "gallery-out"))
