"""Models for search_all.py beyond zoo.py's: MobileNetV3, Swin-T, ConvNeXt-T, YOLOv8n, PP-OCR, occupancy.

    python search_models.py ZOO DATA          # after zoo.py and calib_data.py

Random weights for the first three and the occupancy network (statistics settled on data, as in
zoo.py), the published ones for YOLOv8n (nudenet 3.4.2) and PP-OCR's detection (rapidocr-onnxruntime
1.4.4, both `pip install --no-deps`). DATA gets calib_<model>.npz and heldout_<model>.npz for the last
three. Needs what zoo.py needs, Pillow, scikit-image and matplotlib (its fonts). What is there is kept.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

import zoo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gallery"))

TIMM = {
    "mobilenetv3": "mobilenetv3_large_100",
    "convnext_t": "convnext_tiny",
    "swin_t": "swin_tiny_patch4_window7_224",
}
STATIC_BATCH = 8
"""Batch of the models whose export does not keep a dynamic one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", action="append", help="default: all")
    given = parser.parse_args()
    for name in given.model or (*TIMM, "yolov8n", "ppocr_detection", "occupancy"):
        file = given.zoo / f"{name}.onnx"
        if file.is_file():
            continue
        if name in TIMM:
            _classifier(name, given.data, file)
        else:
            _gallery(name, given.data, file)
        print(f"{name}: {file.stat().st_size / 1e6:.1f} MB", flush=True)


def _classifier(name: str, data: Path, file: Path) -> None:
    import timm  # noqa: PLC0415 (heavy)

    images = torch.from_numpy(np.load(data / "calib.npz")["input"])
    torch.manual_seed(zoo.SEED)
    model = timm.create_model(TIMM[name], pretrained=False)
    zoo.settle_batch_norms(model, images)
    model.eval()
    try:
        zoo.export(zoo.Entry(model, (images[:STATIC_BATCH],), ["input"], "logits"), file)
    except Exception as error:  # whatever the exporter says about the dynamic batch
        print(f"{name}: no dynamic batch ({type(error).__name__}); batch {STATIC_BATCH} is fixed")
        zoo.export(zoo.Entry(model, (images[:STATIC_BATCH],), ["input"], "logits", ({},)), file)


def _gallery(name: str, data: Path, file: Path) -> None:
    if name == "yolov8n":
        import detector as maker  # noqa: PLC0415 (examples/gallery)
    elif name == "ppocr_detection":
        import ocr as maker  # noqa: PLC0415 (examples/gallery)
    else:
        import occupancy as maker  # noqa: PLC0415 (examples/gallery)
    found = next(model for model in maker.models(file.parent) if model.name == name)
    if Path(found.file) != file:
        shutil.copyfile(found.file, file)
    for kind, batches in (("calib", found.calib), ("heldout", found.judging)):
        arrays = {key: np.concatenate([b[key] for b in batches]) for key in batches[0]}
        np.savez(data / f"{kind}_{name}.npz", **_as_arrays(arrays))


def _as_arrays(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


if __name__ == "__main__":
    main()
