"""A number that an Add takes is stored exactly by integer kernels: the module needs no point for it."""

from __future__ import annotations

import torch
from torch import nn

import fuseq.torch
from fuseq.options import QuantizeOptions


class Shifted(nn.Module):
    """A convolution, a shift behind its activation, a padded convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.sigmoid(self.first(x)) + 0.25)  # type: ignore[no-any-return]


def test_a_number_is_neither_mapped_nor_missing() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 8, 8)
    options = QuantizeOptions(target="onnxruntime:cpu", policy="full", batch=2)
    prepared = fuseq.torch.prepare(Shifted().eval(), (x,), options=options)
    found = fuseq.torch.prepared_of(prepared)
    numbers = {entry.tensor for entry in found.plan.tensors if entry.group.startswith("number:")}
    assert len(numbers) == 1
    assert not numbers & set(found.points.missing)
