"""Small networks that the real ModelOpt quantized for tests/data/modelopt; built alike in both places."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ConvNet(nn.Module):
    """Conv-BN-ReLU, a residual block, a depthwise convolution, a pool, a transposed one, a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(16)
        self.block = nn.Conv2d(16, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem_norm(self.stem(image)))
        x = torch.relu(x + self.block(x))
        x = torch.relu(self.depthwise(x))
        x = torch.relu(self.up(self.pool(x)))
        return self.head(self.mean(x).flatten(1))


def conv_net(seed: int = 0) -> ConvNet:
    """The network with weights of a seed and running statistics that are not 0 and 1."""
    torch.manual_seed(seed)
    net = ConvNet()
    net.stem_norm.running_mean.uniform_(-0.5, 0.5)
    net.stem_norm.running_var.uniform_(0.5, 2.0)
    with torch.no_grad():
        net.stem_norm.weight.uniform_(0.5, 1.5)
        net.stem_norm.bias.uniform_(-0.5, 0.5)
    return net.eval()


def conv_input(seed: int = 1, count: int = 4) -> torch.Tensor:
    """Images ``[count, 3, 16, 16]``."""
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def text_config() -> Any:
    """Configuration of a CLIP text encoder of 20 kB."""
    from transformers import CLIPTextConfig  # noqa: PLC0415

    return CLIPTextConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=64, max_position_embeddings=16, projection_dim=32, eos_token_id=63,
        bos_token_id=62, pad_token_id=1, attn_implementation="sdpa",
    )  # fmt: skip


def text_encoder(seed: int = 0) -> nn.Module:
    """The encoder with weights of a seed."""
    from transformers import CLIPTextModelWithProjection  # noqa: PLC0415

    torch.manual_seed(seed)
    return CLIPTextModelWithProjection(text_config()).eval()


def text_input(seed: int = 1, count: int = 4) -> torch.Tensor:
    """Token ids ``[count, 16]`` that end in the end-of-text token."""
    ids = torch.randint(2, 60, (count, 16), generator=torch.Generator().manual_seed(seed))
    ids[:, -1] = 63
    return ids
