"""What the fake quantizers of a prepared module share: scales, switches, and the module that runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import nn

from fuseq.formats import Format
from fuseq.torch.rounding import fake_quantize, stored

Operator = Callable[[torch.Tensor, torch.Tensor, Format, int | None], torch.Tensor]
"""``operator(x, scale, format, axis)``."""

SCALES = "fuseq_scales"
"""The one parameter that preparing adds to the root module: all kept scales, one after the other."""


@dataclasses.dataclass(eq=False)
class State:
    """Shared by all scopes of one prepared module; copied with it.

    Attributes:
        root: The prepared module; it holds the parameter :data:`SCALES`.
        places: Start and length in that parameter, by scale group.
        zero_points: By scale group, of asymmetric formats.
        stored_as: Type that the export stores scales in; every scale is rounded to it.
        smallest: Smallest scale, :data:`fuseq.calibration.formulas.SMALLEST_SCALE`.
        fake_quantize: Points act. Off until scales are there.
        observe: Ranges of the points' tensors are followed.
        batch_norm_frozen: BatchNorms use their running statistics in training too.
        momentum: Weight of a new batch's range while observing.
        active: Number of the scope whose module runs now; -1 outside.
        operator: What stands for a pair in an exported program; None computes it.
    """

    root: nn.Module
    places: dict[str, tuple[int, int]]
    zero_points: Mapping[str, int]
    stored_as: torch.dtype
    smallest: float
    fake_quantize: bool = False
    observe: bool = False
    batch_norm_frozen: bool = False
    momentum: float = 0.1
    active: int = -1
    operator: Operator | None = None

    def apply(
        self, x: torch.Tensor, scale: torch.Tensor, fmt: Format, axis: int | None,
        zero_point: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Fake-quantize, by :attr:`operator` where one is set."""
        if self.operator is not None:
            return self.operator(x, scale, fmt, axis)
        return fake_quantize(x, scale, fmt, axis, zero_point)

    def scale(self, group: str, shape: tuple[int, ...] = ()) -> torch.Tensor:
        """Kept scale of a group as the export stores it, float32; gradients reach the parameter."""
        start, length = self.places[group]
        kept = getattr(self.root, SCALES)[start : start + length].reshape(shape)
        return stored(kept, self.smallest, self.stored_as)

    def zero_point(self, group: str, like: torch.Tensor) -> torch.Tensor | None:
        """Zero point of a group as float32; None for 0."""
        value = self.zero_points.get(group, 0)
        return torch.full_like(like, float(value)) if value else None

    def follow(self, group: str, x: torch.Tensor, fmt: Format) -> None:
        """Move the group's scale towards the range of ``x`` (symmetric formats only)."""
        if not fmt.symmetric:
            return
        start, _ = self.places[group]
        with torch.no_grad():
            seen = x.detach().abs().amax().to(torch.float32) / fmt.qmax
            kept = getattr(self.root, SCALES)
            kept[start] = torch.lerp(kept[start], seen.to(kept.device), self.momentum)
