"""Small modules with the patterns that quantization meets; random weights and statistics."""

from __future__ import annotations

import copy
import functools
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

import fuseq.torch
from fuseq.options import QuantizeOptions

Precision = Literal["fp16", "fp32"]


class Residual(nn.Module):
    """Conv, BatchNorm and a functional Add."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return functional.relu(out)


class ConvNet(nn.Module):
    """A stem, two residual blocks, a max pool and a classifier."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential(Residual(width), nn.MaxPool2d(2), Residual(width))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x)).mean((2, 3))
        return self.head(self.drop(x))


class Attention(nn.Module):
    """Attention with separate layers and scaled_dot_product_attention, as Hugging Face writes it."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class WrittenOut(nn.Module):
    """Attention with one qkv layer and the products written with ``@``, as timm writes it."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class Encoder(nn.Module):
    """Two blocks of attention and MLP with LayerNorm, and torch's own MultiheadAttention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.separate, self.written = Attention(width), WrittenOut(width)
        self.native = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.separate(self.norms[0](x))
        x = x + self.written(self.norms[1](x))
        y = self.norms[2](x)
        x = x + self.native(y, y, y, need_weights=False)[0]
        return (x + self.mlp(self.norms[3](x))).mean(1)


def with_statistics(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give BatchNorms statistics and scales that are not the initial ones."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d):
            for tensor, low, high in (
                (part.running_mean, -0.5, 0.5), (part.running_var, 0.5, 2.0),
                (part.weight.data, 0.5, 1.5), (part.bias.data, -0.5, 0.5),
            ):  # fmt: skip
                tensor.copy_(torch.empty_like(tensor).uniform_(low, high, generator=generator))
    return module.eval()


def conv_net(seed: int = 0) -> ConvNet:
    torch.manual_seed(seed)
    net = with_statistics(ConvNet())
    assert isinstance(net, ConvNet)
    return net


def encoder(seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    return Encoder().eval()


def images(count: int = 4, batch: int = 2, size: int = 16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, 3, size, size, generator=generator) for _ in range(count)]


def tokens(count: int = 4, batch: int = 2, length: int = 16, width: int = 32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(batch, length, width, generator=generator) for _ in range(count)]


def options(
    format: str = "int8", target: str = "tensorrt:sm80", precision: Precision | None = None
) -> QuantizeOptions:
    """Everything the target runs, whether it pays or not."""
    return QuantizeOptions(format=format, target=target, policy="full", precision=precision)


def prepared(
    kind: str,
    format: str = "int8",
    target: str = "tensorrt:sm80",
    precision: Precision | None = None,
) -> nn.Module:
    """A copy of ``conv_net`` or ``encoder``, prepared once for all tests: exporting takes seconds."""
    return copy.deepcopy(_prepared(kind, format, target, precision))


def calibrated(
    kind: str,
    format: str = "int8",
    target: str = "tensorrt:sm80",
    precision: Precision | None = None,
    scales: Literal["frozen", "learned"] = "frozen",
) -> nn.Module:
    """A copy of a prepared module, calibrated once for all tests."""
    return copy.deepcopy(_calibrated(kind, format, target, precision, scales))


def data_of(kind: str) -> list[torch.Tensor]:
    return images() if kind == "conv_net" else tokens()


@functools.cache
def _prepared(kind: str, format: str, target: str, precision: Precision | None) -> nn.Module:
    model = conv_net() if kind == "conv_net" else encoder()
    return fuseq.torch.prepare(model, data_of(kind)[0], options=options(format, target, precision))


@functools.cache
def _calibrated(
    kind: str,
    format: str,
    target: str,
    precision: Precision | None,
    scales: Literal["frozen", "learned"],
) -> nn.Module:
    net = prepared(kind, format, target, precision)
    return fuseq.torch.calibrate(net, data_of(kind), scales=scales)
