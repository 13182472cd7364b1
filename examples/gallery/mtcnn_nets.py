"""MTCNN's three networks (Zhang et al., 2016), built to take facenet-pytorch's weights, and their ONNX files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import nn

from exported import quiet
from packages import installed


@dataclasses.dataclass(frozen=True)
class Shape:
    """One network.

    Attributes:
        weights: File name in the package.
        side: Side of the pixels that it judges; the first runs on whole pictures.
        convs: Channels, kernel size and the max pool (size, stride) behind, or None.
        dense: Inputs and outputs of the linear layer before the heads; None: the heads are convolutions.
        heads: Outputs of each head: the two classes, the box, and the landmarks of the third.
    """

    weights: str
    side: int
    convs: tuple[tuple[int, int, tuple[int, int] | None], ...]
    dense: tuple[int, int] | None
    heads: tuple[int, ...]


NETS = {
    "propose": Shape("pnet.pt", 12, ((10, 3, (2, 2)), (16, 3, None), (32, 3, None)), None, (2, 4)),
    "refine": Shape(
        "rnet.pt", 24, ((28, 3, (3, 2)), (48, 3, (3, 2)), (64, 2, None)), (576, 128), (2, 4)
    ),
    "output": Shape(
        "onet.pt", 48, ((32, 3, (3, 2)), (64, 3, (3, 2)), (64, 3, (2, 2)), (128, 2, None)),
        (1152, 256), (2, 4, 10),
    ),
}  # fmt: skip


class Stage(nn.Module):
    """Pixels ``[N, 3, height, width]`` to the probability of a face and the box's corrections.

    The first network answers for every position, ``[N, h, w]`` and ``[N, 4, h, w]``, the others once an
    image, ``[N]`` and ``[N, 4]``.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, kernel, pool in shape.convs:
            layers += [nn.Conv2d(channels, width, kernel), nn.PReLU(width)]
            if pool is not None:
                layers.append(nn.MaxPool2d(*pool, ceil_mode=True))
            channels = width
        self.body = nn.Sequential(*layers)
        self.dense = (
            nn.Sequential(nn.Linear(*shape.dense), nn.PReLU(shape.dense[1]))
            if shape.dense is not None
            else None
        )
        inner = shape.dense[1] if shape.dense is not None else channels
        self.heads = nn.ModuleList(
            nn.Linear(inner, width) if shape.dense is not None else nn.Conv2d(inner, width, 1)
            for width in shape.heads
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        if self.dense is not None:
            x = self.dense(
                x.permute(0, 3, 2, 1).flatten(1)
            )  # its weights were made column by column
        return self.heads[0](x).softmax(1)[:, 1], self.heads[1](x)


def net(name: str) -> Stage:
    """A network with the package's weights; parameters have the same order there."""
    made = Stage(NETS[name])
    file = installed("facenet_pytorch", f"data/{NETS[name].weights}")
    stored = torch.load(file, weights_only=True)
    made.load_state_dict(dict(zip(made.state_dict(), stored.values(), strict=True)))
    return made.eval()


def export_nets(out: Path) -> None:
    """Write ``out/mtcnn_<name>.onnx``: the first for pictures of any size, the others for any number."""
    for name, shape in NETS.items():
        batch = torch.export.Dim("n", max=512)
        axes: dict[int, torch.export.Dim] = {0: batch}
        example = torch.zeros(8, 3, shape.side, shape.side)
        if name == "propose":
            example = torch.zeros(1, 3, 64, 96)
            axes = {
                axis: torch.export.Dim(label, min=12, max=1024)
                for axis, label in ((2, "h"), (3, "w"))
            }
        with quiet():
            program = torch.onnx.export(
                net(name), (example,), dynamo=True, input_names=["x"],
                output_names=["score", "box"], dynamic_shapes=(axes,), verbose=False,
            )  # fmt: skip
        assert program is not None
        program.save(str(out / f"mtcnn_{name}.onnx"), external_data=False)
