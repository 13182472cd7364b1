"""Quantization-aware training with a training loop of one's own, on scikit-learn's digits.

A network whose depthwise weights get one INT8 scale for all channels loses accuracy when it is only
calibrated; trained for a few epochs with learned scales it comes back. Runs in seconds on a CPU.

    pip install 'fuseq[torch]' scikit-learn
    python examples/qat_digits.py
"""

from __future__ import annotations

import dataclasses

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import fuseq.torch
from fuseq import Plan, QuantizeOptions

OPTIONS = QuantizeOptions(format="int8", target="tensorrt:sm80", policy="full")


class Net(nn.Module):
    """A depthwise separable network for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 24, 3, padding=1)
        self.deep = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.point, self.head = nn.Conv2d(24, 32, 1), nn.Linear(32 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.deep(functional.relu(self.first(x))))
        return self.head(functional.max_pool2d(functional.relu(self.point(x)), 2).flatten(1))


def main() -> None:
    """Train in float, calibrate, train quantized, export."""
    x, y, test_x, test_y = data()
    torch.manual_seed(0)
    model = Net()
    fit(model, x, y, epochs=15, rate=3e-3)
    spread_channels(model)
    print(f"float             {accuracy(model, test_x, test_y):5.1f} %")

    planned = fuseq.torch.prepared_of(fuseq.torch.prepare(model, x[:8], options=OPTIONS)).plan
    net = fuseq.torch.prepare(model, x[:8], options=OPTIONS, plan=one_scale(planned))
    fuseq.torch.calibrate(net, x.split(100), scales="learned")
    print(f"INT8, calibrated  {accuracy(net, test_x, test_y):5.1f} %")

    fit(net, x, y, epochs=6, rate=2e-3)
    print(f"INT8, trained     {accuracy(net, test_x, test_y):5.1f} %")
    fuseq.torch.export(net, "digits_int8.onnx")
    print("digits_int8.onnx")


def one_scale(plan: Plan) -> Plan:
    """The plan with one scale a weight instead of one a channel: what some hardware asks for."""
    tensors = tuple(
        dataclasses.replace(entry, axis=None) if entry.kind == "weight" else entry
        for entry in plan.tensors
    )
    return dataclasses.replace(plan, tensors=tensors)


def fit(net: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, rate: float) -> None:
    """An ordinary loop; nothing in it knows about quantization."""
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).split(100):
            optimizer.zero_grad()
            functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def spread_channels(net: Net) -> None:
    """Same function, two depthwise channels far larger than the rest, as BatchNorm folding makes them."""
    with torch.no_grad():
        factor = torch.ones(24)
        factor[::12] = 200.0
        net.deep.weight.mul_(factor.view(-1, 1, 1, 1))
        net.deep.bias.mul_(factor)
        net.point.weight.div_(factor.view(1, -1, 1, 1))


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """1,200 images to train on, 597 to test on."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1200], y[:1200], x[1200:], y[1200:]


def accuracy(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Top-1 in percent."""
    with torch.no_grad():
        return float((net.eval()(x).argmax(1) == y).float().mean()) * 100


if __name__ == "__main__":
    main()
