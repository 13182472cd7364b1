"""A 3D occupancy network with an implicit head: voxels in, an answer for every query point out.

    python examples/gallery/occupancy.py --out gallery-out

Conv3d encodes a voxel grid, ConvTranspose3d brings it back to size, grid_sample reads a feature for each
query point, an MLP says whether the point is occupied. Random weights, built and exported with PyTorch:
what is judged is agreement with float.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from exported import export
from rows import Feeds, Model
from tables import main


class Occupancy(nn.Module):
    """Voxels ``[batch, 1, size, size, size]`` and points ``[batch, n, 3]`` in -1 to 1 to logits ``[batch, n]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv3d(1, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU(),
            nn.Conv3d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm3d(2 * width), nn.ReLU(),
            nn.Conv3d(2 * width, 4 * width, 3, stride=2, padding=1), nn.BatchNorm3d(4 * width), nn.ReLU(),
        )  # fmt: skip
        self.decode = nn.Sequential(
            nn.ConvTranspose3d(4 * width, 2 * width, 2, stride=2), nn.ReLU(),
            nn.ConvTranspose3d(2 * width, 2 * width, 2, stride=2), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(2 * width + 3, 8 * width), nn.ReLU(),
            nn.Linear(8 * width, 8 * width), nn.ReLU(), nn.Linear(8 * width, 1),
        )  # fmt: skip

    def forward(self, voxels: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        volume = self.decode(self.encode(voxels))
        grid = points[:, :, None, None, :]
        features = functional.grid_sample(volume, grid, align_corners=True)[:, :, :, 0, 0]
        logits = self.head(torch.cat([features.transpose(1, 2), points], dim=2))
        return logits[..., 0] - logits.mean(dim=1)  # half of the points of each shape are inside


def models(out: Path) -> Sequence[Model]:
    """The network at the size that is measured."""
    return [occupancy_model(out, size=32, width=16, points=4096)]


def occupancy_model(out: Path, size: int, width: int, points: int) -> Model:
    """Export the network and make its data: blobs, and points in the volume."""
    file = out / "occupancy.onnx"
    torch.manual_seed(0)
    net = _settled(Occupancy(width), size, points)
    export(net, _data(1, size, points, seed=9)[0], "logits", file)
    exact: list[np.ndarray] = []

    def judge(outputs: list[Feeds]) -> float:
        (name,) = outputs[0]
        inside = [batch[name] > 0 for batch in outputs]
        if not exact:  # the float model is judged first
            exact.extend(inside)
        return 100 * float(np.mean([a == b for a, b in zip(exact, inside, strict=True)]))

    shapes = {"voxels": (1, 1, size, size, size), "points": (1, points, 3)}
    return Model(
        "occupancy", file, shapes, _data(8, size, points, seed=1), _data(8, size, points, seed=2),
        "points as in float", judge,
    )  # fmt: skip


def _data(count: int, size: int, points: int, seed: int) -> list[Feeds]:
    """``count`` batches of one: balls that are filled, and points drawn evenly."""
    rng = np.random.default_rng(seed)
    axes = np.stack(np.meshgrid(*[np.linspace(-1, 1, size)] * 3, indexing="ij"))
    made = []
    for _ in range(count):
        centers, radii = rng.uniform(-0.6, 0.6, (5, 3)), rng.uniform(0.15, 0.45, 5)
        far = [
            np.linalg.norm(axes - c[:, None, None, None], axis=0) > r
            for c, r in zip(centers, radii, strict=True)
        ]
        made.append({
            "voxels": (~np.all(far, axis=0)).astype(np.float32)[None, None],
            "points": rng.uniform(-1, 1, (1, points, 3)).astype(np.float32),
        })  # fmt: skip
    return made


def _settled(net: Occupancy, size: int, points: int) -> Occupancy:
    """BatchNorm's statistics from data, as training would leave them."""
    with torch.no_grad():
        for feeds in _data(4, size, points, seed=3):
            net.train()(*(torch.from_numpy(array) for array in feeds.values()))
    return net.eval()


if __name__ == "__main__":
    sys.exit(main(__doc__, models, "gallery-out"))
