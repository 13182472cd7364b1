"""Puts the gallery's CPU models beside zoo.py's: YOLOv8n, PP-OCR detection and recognition.

    python cpu_models.py ZOO DATA

ZOO gets <model>.onnx, DATA calib_<model>.npz and heldout_<model>.npz with one array an input. Files that
are there stay. Needs the gallery's packages (docs/gallery.md): nudenet, rapidocr-onnxruntime, Pillow,
scikit-image and matplotlib.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gallery"))

MODELS = ("yolov8n", "ppocr_detection", "ppocr_recognition")


def gallery(folder: Path) -> dict[str, Any]:
    """The gallery's models by name."""
    makers = [importlib.import_module(name) for name in ("detector", "ocr")]
    found = [model for maker in makers for model in maker.models(folder)]
    return {model.name: model for model in found if model.name in MODELS}


def store(batches: list[dict[str, np.ndarray]], file: Path) -> None:
    """Write all batches as one array an input."""
    np.savez(file, **{name: np.concatenate([b[name] for b in batches]) for name in batches[0]})  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    for folder in (options.zoo, options.data):
        folder.mkdir(parents=True, exist_ok=True)
    for name, model in gallery(options.zoo).items():
        if not (options.zoo / f"{name}.onnx").exists():
            shutil.copyfile(model.file, options.zoo / f"{name}.onnx")
        for kind, batches in (("calib", model.calib), ("heldout", model.judging)):
            if not (options.data / f"{kind}_{name}.npz").exists():
                store(batches, options.data / f"{kind}_{name}.npz")
        print(name, flush=True)


if __name__ == "__main__":
    main()
