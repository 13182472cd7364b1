"""MTCNN's cascade (Zhang et al., 2016) on three ONNX files: a pyramid, two rounds of crops, boxes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from detector import Box, overlap
from rows import Feeds, outputs_of

LEAST_PX, FACTOR = 24, 0.709
"""Smallest face, and how much smaller each level of the pyramid is."""
THRESHOLDS = (0.6, 0.7, 0.7)
SIDES = (12, 24, 48)
STRIDE = 2


@dataclasses.dataclass(frozen=True)
class Faces:
    """What a cascade found, and what it gave its second and third network.

    Attributes:
        found: Boxes of each picture.
        second: Crops of each picture for the second network, float32 [N, 3, 24, 24].
        third: The same for the third, [N, 3, 48, 48].
    """

    found: list[list[Box]]
    second: list[np.ndarray]
    third: list[np.ndarray]


def faces(files: Sequence[Path], pictures: Sequence[np.ndarray], *, as_written: bool) -> Faces:
    """Run the cascade on pictures [height, width, 3] uint8, one stage after the other for all of them."""
    boxes = _proposed(files[0], pictures, as_written)
    crops: list[list[np.ndarray]] = []
    for stage in (1, 2):
        boxes = [_square(one) for one in boxes]
        cut = [
            _crops(picture, one, SIDES[stage]) for picture, one in zip(pictures, boxes, strict=True)
        ]
        crops.append(cut)
        answers = _answers(files[stage], cut, as_written)
        boxes = [
            _kept(one, score, moved, THRESHOLDS[stage], 0.7)
            for one, (score, moved) in zip(boxes, answers, strict=True)
        ]
    found = [[(0, float(row[4]), row[:4]) for row in one] for one in boxes]
    return Faces(found, *crops)


def as_input(images: Sequence[np.ndarray]) -> np.ndarray:
    """uint8 images [height, width, 3] of one size to float32 [N, 3, height, width], about -1 to 1."""
    return (np.stack(images).transpose(0, 3, 1, 2).astype(np.float32) - 127.5) / 128


def pyramid(picture: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """The picture ever smaller, with its scale, down to twelve pixels."""
    scale = SIDES[0] / LEAST_PX
    while min(picture.shape[:2]) * scale >= SIDES[0]:
        height, width = (round(side * scale) for side in picture.shape[:2])
        made = Image.fromarray(picture).resize((width, height), Image.Resampling.BOX)
        yield np.asarray(made), scale
        scale *= FACTOR


def _proposed(file: Path, pictures: Sequence[np.ndarray], as_written: bool) -> list[np.ndarray]:
    """Boxes [N, 5] (corners and score) of each picture that the first network lets through."""
    owners, feeds = [], []
    for index, picture in enumerate(pictures):
        for level, scale in pyramid(picture):
            owners.append((index, scale))
            feeds.append({"x": as_input([level])})
    made: list[list[np.ndarray]] = [[] for _ in pictures]
    for (index, scale), answer in zip(
        owners, outputs_of(file, feeds, as_written=as_written), strict=True
    ):
        score, moved = answer["score"][0], answer["box"][0]
        y, x = np.nonzero(score >= THRESHOLDS[0])
        corners = np.stack([x, y, x, y], 1) * STRIDE + np.array([0, 0, SIDES[0], SIDES[0]])
        rows = np.concatenate([corners / scale, np.zeros((len(x), 1))], 1)
        made[index].append(_kept(rows, score[y, x], moved[:, y, x].T, THRESHOLDS[0], 0.5))
    return [_suppressed(np.concatenate(rows), 0.7) for rows in made]


def _answers(
    file: Path, crops: Sequence[np.ndarray], as_written: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Score [N] and corrections [N, 4] of each picture's crops; pictures without any are not run."""
    feeds: list[Feeds] = [{"x": one} for one in crops if len(one)]
    made = iter(outputs_of(file, feeds, as_written=as_written) if feeds else [])
    empty = (np.zeros(0), np.zeros((0, 4)))
    answers = []
    for one in crops:
        answer = next(made) if len(one) else None
        answers.append(empty if answer is None else (answer["score"], answer["box"]))
    return answers


def _kept(
    boxes: np.ndarray, score: np.ndarray, moved: np.ndarray, least: float, most: float
) -> np.ndarray:
    """Boxes [N, 5] of enough score, moved by the network's corrections, without those that overlap."""
    chosen = score >= least
    corners = boxes[chosen, :4]
    size = corners[:, 2:] - corners[:, :2]
    corners = corners + moved[chosen] * np.tile(size, (1, 2))
    return _suppressed(np.concatenate([corners, score[chosen, None]], 1), most)


def _suppressed(boxes: np.ndarray, most: float) -> np.ndarray:
    """The strongest boxes, and the others that overlap no stronger one by more than ``most``."""
    kept: list[np.ndarray] = []
    for row in boxes[np.argsort(-boxes[:, 4], kind="stable")]:
        if all(overlap(row[:4], one[:4]) <= most for one in kept):
            kept.append(row)
    return np.array(kept).reshape(-1, 5)


def _square(boxes: np.ndarray) -> np.ndarray:
    """Each box as the square around its centre whose side is its longer one."""
    middle = (boxes[:, :2] + boxes[:, 2:4]) / 2
    half = (boxes[:, 2:4] - boxes[:, :2]).max(1, initial=0.0)[:, None] / 2
    return np.concatenate([middle - half, middle + half, boxes[:, 4:]], 1)


def _crops(picture: np.ndarray, boxes: np.ndarray, side: int) -> np.ndarray:
    """What is in the boxes, float32 [N, 3, side, side]; black outside the picture."""
    image = Image.fromarray(picture)
    cut = (image.crop(tuple(round(float(edge)) for edge in row[:4])) for row in boxes)
    made = [np.asarray(one.resize((side, side), Image.Resampling.BILINEAR)) for one in cut]
    return as_input(made) if made else np.zeros((0, 3, side, side), np.float32)
