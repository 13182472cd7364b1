"""Real photos and English sentences for calibration, and others for judging; nothing is downloaded.

The photos ship inside the wheels of scikit-image and scikit-learn; each is cut in two, so that no
pixel is in both sets. The sentences lie beside this file.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CROP_PX = 256
CALIBRATION_SHARE = 0.4
CROPS_PER_PHOTO = {"calibration": 2, "judging": 26}
SENTENCES_PER_TOPIC = 3
"""The first of each topic calibrate, the other five judge."""

PHOTOS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/camera.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/rocket.jpg"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)


def write_crops(out: Path) -> tuple[Path, Path]:
    """Write square crops as PNG files to ``out/calibration`` (16) and ``out/judging`` (208)."""
    rng = np.random.default_rng(0)
    folders = {name: out / name for name in CROPS_PER_PHOTO}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    for package, inside in PHOTOS:
        photo = Image.open(_installed(package, inside)).convert("RGB")
        cut = round(photo.width * CALIBRATION_SHARE)
        parts = {
            "calibration": photo.crop((0, 0, cut, photo.height)),
            "judging": photo.crop((cut, 0, photo.width, photo.height)),
        }
        for name, part in parts.items():
            for index in range(CROPS_PER_PHOTO[name]):
                _random_crop(part, rng).save(
                    folders[name] / f"{Path(inside).stem}_{index:02d}.png", compress_level=1
                )
    return folders["calibration"], folders["judging"]


def read_sentences() -> tuple[list[str], list[str]]:
    """The sentences to calibrate with (63) and to judge with (105); no sentence is in both."""
    text = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8")
    calibration, judging = [], []
    for topic in text.split("# ")[1:]:
        sentences = topic.splitlines()[1:]
        calibration += sentences[:SENTENCES_PER_TOPIC]
        judging += sentences[SENTENCES_PER_TOPIC:]
    return calibration, judging


def tokens(texts: list[str], tokenizer: Any) -> dict[str, np.ndarray]:
    """The texts as one batch, padded to the longest: int64 [N, L] by input name."""
    encoded = tokenizer(texts, padding=True, return_tensors="np")
    return {name: encoded[name].astype(np.int64) for name in ("input_ids", "attention_mask")}


def _random_crop(part: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A square of 60 to 100 % of the shorter side, mirrored half of the time."""
    side = round(min(part.size) * rng.uniform(0.6, 1.0))
    left, top = (int(rng.integers(0, length - side + 1)) for length in part.size)
    crop = part.crop((left, top, left + side, top + side)).resize((CROP_PX, CROP_PX))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.integers(0, 2) else crop


def _installed(package: str, inside: str) -> Path:
    """Path of a file in an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: run `make demo`, which installs it.")
    return Path(spec.origin).parent / inside
