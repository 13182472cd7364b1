"""Seven tiny networks of well-known kinds, with random weights from a fixed seed, and their data.

Each has a few ten thousand weights, so that what a tool makes of it is a file of under 200 kB that can be
test data. BatchNorm statistics are measured on the data, so that ranges are sane. Needs torch alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

SEED = 0
SAMPLES = 16
IMAGE = (3, 32, 32)
TOKENS, VOCABULARY = 16, 64


def conv(
    inputs: int, outputs: int, window: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Conv without bias, and BatchNorm."""
    pad = window // 2
    return [
        nn.Conv2d(inputs, outputs, window, stride, pad, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Residual(nn.Module):
    """Two convolutions and a shortcut, as in ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv(inputs, outputs, 3, stride), nn.ReLU(), *conv(outputs, outputs, 3)
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Sequential(*([] if same else conv(inputs, outputs, 1, stride)))
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class Squeeze(nn.Module):
    """Squeeze and excite."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.expand(nn.functional.silu(self.reduce(pooled))))


class Inverted(nn.Module):
    """Expand, depthwise, project: MobileNetV2's block, or EfficientNet's with squeeze and excite."""

    def __init__(self, inputs: int, outputs: int, stride: int, efficient: bool) -> None:
        super().__init__()
        wide = 4 * inputs
        act: Callable[[], nn.Module] = nn.SiLU if efficient else nn.ReLU6
        self.body = nn.Sequential(
            *conv(inputs, wide, 1),
            act(),
            *conv(wide, wide, 3, stride, wide),
            act(),
            *([Squeeze(wide)] if efficient else []),
            *conv(wide, outputs, 1),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + x if self.adds else self.body(x)


class Head(nn.Module):
    """Average pool and a linear layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool, self.linear = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.pool(x).flatten(1))


class Attention(nn.Module):
    """Multi-head attention with one projection for Q, K and V."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer's pre-norm block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """Patches, a class token, two blocks, a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Text(nn.Module):
    """Token ids and a mask, two blocks, the mean of the masked tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(1, TOKENS, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions
        gap = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for block in self.blocks:
            x = block(x, gap)
        weights = mask[..., None].to(x.dtype)
        return (self.norm(x) * weights).sum(1) / weights.sum(1)


class Unet(nn.Module):
    """Down, a transposed convolution up, a nearest Resize, a Concat."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*conv(3, 16, 3), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), *conv(16, 32, 3), nn.ReLU())
        self.low = nn.Sequential(nn.MaxPool2d(2), *conv(32, 32, 3), nn.ReLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.merge = nn.Sequential(*conv(48, 16, 3), nn.ReLU())
        self.last = nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        down = self.down(first)
        low = nn.functional.interpolate(self.low(down), scale_factor=2.0, mode="nearest")
        up = nn.functional.interpolate(self.up(down), scale_factor=1.0, mode="nearest")
        merged = nn.functional.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.last(torch.cat([self.merge(torch.cat([up, merged], 1)), first], 1))


class ConvNext(nn.Module):
    """Depthwise 7x7, LayerNorm over channels, two linear layers, a scale per channel."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.head = Head(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x)
        inside = self.depthwise(x).permute(0, 2, 3, 1)
        inside = (self.scale * self.mlp(self.norm(inside))).permute(0, 3, 1, 2)
        return self.head(x + inside)


def inverted(efficient: bool) -> nn.Module:
    return nn.Sequential(
        *conv(3, 16, 3, 2),
        nn.SiLU() if efficient else nn.ReLU6(),
        Inverted(16, 16, 1, efficient),
        Inverted(16, 24, 2, efficient),
        Inverted(24, 24, 1, efficient),
        Head(24),
    )


def resnet() -> nn.Module:
    return nn.Sequential(
        *conv(3, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Head(32),
    )


NETS: dict[str, Callable[[], nn.Module]] = {
    "resnet": resnet,
    "mobilenet": lambda: inverted(False),
    "efficientnet": lambda: inverted(True),
    "vit": Vit,
    "text": Text,
    "unet": Unet,
    "convnext": ConvNext,
}


@dataclasses.dataclass(frozen=True)
class Made:
    """A network in evaluation mode with its data: one tensor an input, axis 0 the samples."""

    net: nn.Module
    inputs: dict[str, torch.Tensor]


def make(name: str) -> Made:
    """Build a network, draw its weights, measure its BatchNorm statistics."""
    torch.manual_seed(SEED)
    net = NETS[name]()
    inputs = data_of(name)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.3, 0.3)
                module.momentum = None  # the mean over all batches
        net.train()
        for _ in range(3):
            net(*inputs.values())
    return Made(net.eval(), inputs)


def data_of(name: str) -> dict[str, torch.Tensor]:
    """Smooth noise for images, random ids and masks for text."""
    made = torch.Generator().manual_seed(SEED + 1)
    if name == "text":
        ids = torch.randint(0, VOCABULARY, (SAMPLES, TOKENS), generator=made)
        lengths = torch.randint(TOKENS // 2, TOKENS + 1, (SAMPLES, 1), generator=made)
        return {"ids": ids, "mask": (torch.arange(TOKENS)[None] < lengths).to(torch.int64)}
    coarse = torch.randn(SAMPLES, *IMAGE[:1], 8, 8, generator=made)
    fine = torch.randn(SAMPLES, *IMAGE, generator=made)
    smooth = nn.functional.interpolate(coarse, size=IMAGE[1:], mode="bilinear")
    return {"x": smooth + 0.3 * fine}
