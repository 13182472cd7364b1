"""A recurrent network built in PyTorch: convolutions, an LSTM, a linear layer on every step.

    python examples/gallery/recurrent.py --out gallery-out

Random weights; judged by agreement with float. No target has 8-bit LSTM kernels that a Q/DQ pair could reach,
so the LSTM stays float and its neighbours are planned around it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from exported import export
from rows import Feeds, Model
from tables import main


class Tagger(nn.Module):
    """Features ``[batch, channels, steps]`` to one of ten tags a step, logits ``[batch, steps, 10]``."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv1d(channels, width, 5, padding=2), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.ReLU(),
        )  # fmt: skip
        self.recur = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.recur(self.encode(x).transpose(1, 2))
        return self.head(states)


def models(out: Path) -> Sequence[Model]:
    """The network at the size that is measured."""
    return [recurrent_model(out, channels=64, width=256, steps=128, batch=8)]


def recurrent_model(out: Path, channels: int, width: int, steps: int, batch: int) -> Model:
    """Export the network and make its data: noise that is smooth in time."""
    file = out / "recurrent.onnx"
    torch.manual_seed(0)
    shape = (batch, channels, steps)
    export(Tagger(channels, width), _data(1, shape, seed=9)[0], "tags", file)
    exact: list[np.ndarray] = []

    def judge(outputs: list[Feeds]) -> float:
        tags = np.concatenate([one["tags"] for one in outputs]).argmax(-1)
        if not exact:  # the float model is judged first
            exact.append(tags)
        return 100 * float((exact[0] == tags).mean())

    return Model(
        "recurrent", file, {"x": shape}, _data(4, shape, seed=1), _data(4, shape, seed=2),
        "tags as in float", judge,
    )  # fmt: skip


def _data(count: int, shape: tuple[int, ...], seed: int) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        noise = rng.normal(size=(*shape[:-1], shape[-1] + 4)).astype(np.float32)
        made.append({"x": sum(noise[..., i : i + shape[-1]] for i in range(5)) / np.float32(2.2)})
    return made


if __name__ == "__main__":
    sys.exit(main(__doc__, models, "gallery-out"))
