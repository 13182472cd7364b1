"""MTCNN (facenet-pytorch's weights): three small networks, each of which reads what the one before let through.

    pip install --group gallery && pip install --no-deps facenet-pytorch==2.6.0
    python examples/gallery/mtcnn.py --out gallery-out

Judged alone (face or not, on Labeled Faces in the Wild's 25-pixel patches in scikit-image) and as a cascade of
three quantized files: the faces that it finds on pages of pasted patches and on crops of a portrait. The second
and third network are calibrated with what the float networks before them let through.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from detector import Box, agreement
from mtcnn_cascade import THRESHOLDS, as_input, faces, pyramid
from mtcnn_nets import NETS, export_nets
from packages import installed
from rows import CPU, Feeds, Model, Row, as_json, rows_of
from tables import markdown

PAGE_PX, PATCH_PX, PATCHES = 192, 56, 9
LEVEL_PX = 96
"""Side of the pyramid's level for which the first network's engine is compiled."""
CANDIDATES = 16
CALIBRATION_FACES = 40


def main() -> int:
    """Quantize each network, then run the cascades of the files that came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gallery-out"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    models = models_of(out)
    found = {model.name: rows_of(model, out, print) for model in models}
    judged = pages(seed=2, first=CALIBRATION_FACES)
    exact = faces(tuple(model.file for model in models), judged, as_written=False).found
    draw([judged[0], judged[-1]], [exact[0], exact[-1]], out / "mtcnn.png")
    found["mtcnn_cascade"] = cascade_rows(models, list(found.values()), judged, exact, out)
    count = sum(map(len, exact))
    whole = dataclasses.replace(
        models[0], name="mtcnn_cascade", shapes={},
        metric=f"the {count} faces of FP32 in {len(judged)} pictures, three networks together",
    )  # fmt: skip
    for model in (*models, whole):
        rows = found[model.name]
        (out / f"{model.name}.json").write_text(json.dumps(as_json(rows), indent=1))
        (out / f"{model.name}.md").write_text(markdown(model, rows))
        print(markdown(model, rows))
    return 0


def models_of(out: Path) -> list[Model]:
    """The three networks with their data, exported into ``out``."""
    export_nets(out)
    files = tuple(out / f"mtcnn_{name}.onnx" for name in NETS)
    seen = faces(files, pages(seed=1, first=0), as_written=False)
    judged = pages(seed=2, first=CALIBRATION_FACES)
    first, second, third = files
    return [
        _proposals(first, pages(seed=1, first=0), judged),
        _patch_judge("refine", second, seen.second),
        _patch_judge("output", third, seen.third),
    ]


def cascade_rows(
    models: Sequence[Model],
    rows: Sequence[Sequence[Row]],
    pictures: list[np.ndarray],
    exact: list[list[Box]],
    out: Path,
) -> list[Row]:
    """For FP32 and each choice: the three files as one cascade, kernels and times added up."""
    made = [Row("", "FP32", 100.0)]
    for three in list(zip(*rows, strict=True))[1:]:
        row = three[0]
        errors = [one.error for one in three if one.error]
        if errors:
            made.append(Row(row.target, row.name, error=errors[0]))
            continue
        files = tuple(written(model, one, out) for model, one in zip(models, three, strict=True))
        found = faces(files, pictures, as_written=row.target != CPU).found
        regions = [[int(n) for n in one.regions.split(" of ")] for one in three]
        made.append(Row(
            row.target, row.name, 100 * agreement(exact, found),
            " of ".join(str(sum(column)) for column in zip(*regions, strict=True)),
            *(sum(getattr(one, name) for one in three)
              for name in ("kernels", "pairs", "time_us", "float_us")),
        ))  # fmt: skip
    return made


def draw(pictures: list[np.ndarray], found: list[list[Box]], file: Path) -> None:
    """Write the pictures side by side, with the boxes."""
    sheet = Image.new("RGB", (PAGE_PX * len(pictures), PAGE_PX))
    for index, (picture, boxes) in enumerate(zip(pictures, found, strict=True)):
        image = Image.fromarray(picture)
        for _, _, corners in boxes:
            ImageDraw.Draw(image).rectangle(tuple(corners), outline=(255, 60, 0), width=2)
        sheet.paste(image, (PAGE_PX * index, 0))
    sheet.save(file)


def written(model: Model, row: Row, out: Path) -> Path:
    """The file that :func:`rows.rows_of` wrote for a row."""
    name = f"{model.name}.{row.target}.{row.name}.onnx"
    return out / name.replace(" ", "-").replace(":", "-")


def pages(seed: int, first: int) -> list[np.ndarray]:
    """Pictures [height, width, 3] uint8: pages of nine patches, and crops of the portrait.

    Args:
        seed: Of the places and sizes.
        first: The first face that is pasted; 40 faces are used from there on.
    """
    rng = np.random.default_rng(seed)
    patches = patch_pixels()
    made = []
    for _ in range(12):
        page = rng.integers(60, 160, (PAGE_PX, PAGE_PX, 1)).astype(np.uint8).repeat(3, 2)
        for place in range(PATCHES):
            is_face = rng.random() < 0.7
            patch = patches[first + int(rng.integers(40)) + (0 if is_face else 100)]
            top, left = (60 * (place // 3) + 6, 60 * (place % 3) + 6)
            page[top : top + PATCH_PX, left : left + PATCH_PX] = resized(patch, PATCH_PX)
        made.append(page)
    return [*made, *_portraits(12, rng)]


def patch_pixels() -> np.ndarray:
    """Labeled Faces in the Wild's subset, uint8 [200, 25, 25, 3]: 100 faces, then 100 that are none."""
    grey = np.load(installed("skimage", "data/lfw_subset.npy"))
    return np.repeat((grey * 255).astype(np.uint8)[..., None], 3, axis=3)


def resized(image: np.ndarray, side: int) -> np.ndarray:
    """uint8 [side, side, 3]."""
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))


def _portraits(count: int, rng: np.random.Generator) -> list[np.ndarray]:
    photo = Image.open(installed("skimage", "data/astronaut.png")).convert("RGB")
    made = []
    for _ in range(count):
        side = int(rng.integers(220, 400))
        left, top = int(rng.integers(0, 512 - side)), int(rng.integers(0, 90))
        crop = photo.crop((left, top, left + side, top + side))
        made.append(np.asarray(crop.resize((PAGE_PX, PAGE_PX), Image.Resampling.BILINEAR)))
    return made


def _proposals(file: Path, calib: list[np.ndarray], judged: list[np.ndarray]) -> Model:
    """The first network, judged by the positions that it lets through: intersection over union."""
    exact: list[np.ndarray] = []

    def judge(outputs: list[Feeds]) -> float:
        passed = [batch["score"] >= THRESHOLDS[0] for batch in outputs]
        if not exact:  # the float model is judged first
            exact.extend(passed)
        pairs = list(zip(exact, passed, strict=True))
        both = sum(int((a & b).sum()) for a, b in pairs)
        return 100 * both / max(sum(int((a | b).sum()) for a, b in pairs), 1)

    def levels(pictures: list[np.ndarray]) -> list[Feeds]:
        return [{"x": as_input([level])} for one in pictures for level, _ in pyramid(one)]

    return Model(
        "mtcnn_propose", file, {"x": (1, 3, LEVEL_PX, LEVEL_PX)}, levels(calib), levels(judged),
        "positions let through as in FP32 (intersection over union)", judge,
    )  # fmt: skip


def _patch_judge(name: str, file: Path, calib: list[np.ndarray]) -> Model:
    """The second or third network, judged on patches that are labelled as faces or not."""
    side = NETS[name].side
    patches = patch_pixels()
    rest = [*range(CALIBRATION_FACES, 100), *range(100 + CALIBRATION_FACES, 200)]
    images = as_input([resized(patches[index], side) for index in rest])
    is_face = np.array(rest) < 100

    def judge(outputs: list[Feeds]) -> float:
        said = np.concatenate([batch["score"] for batch in outputs]).ravel()
        return 100 * float(((said >= THRESHOLDS[1]) == is_face).mean())

    return Model(
        f"mtcnn_{name}", file, {"x": (CANDIDATES, 3, side, side)},
        [{"x": crops[:64]} for crops in calib if len(crops)],
        [{"x": images[i : i + 20]} for i in range(0, len(images), 20)],
        f"patches told right, {len(rest)} of Labeled Faces in the Wild", judge,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
