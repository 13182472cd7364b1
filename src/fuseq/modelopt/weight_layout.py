"""How an exporter stored a module's weight, told by comparing the two arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fuseq.placement.patterns import Weighted

_RELATIVE = 1e-3
"""How well ``w * r`` must match a folded weight, relative to the channel's largest value: FP16 models
round twice (2^-11 each)."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the parts of a stored weight lie.

    Attributes:
        swapped: The first two axes of the module's weight are swapped (Linear ``[O, I]`` -> ``[I, O]``).
        channel_axis: Axis of the output channels in the stored weight.
        widths: Output channels of each part.
        factors: What each output channel was multiplied by, float64, ``(channels,)``.
    """

    swapped: bool
    channel_axis: int
    widths: tuple[int, ...]
    factors: np.ndarray

    @property
    def is_rescaled(self) -> bool:
        """A BatchNorm or a constant factor was folded into it."""
        return not bool((self.factors == 1).all())

    def ranges(
        self, amax: Sequence[np.ndarray | None], axes: Sequence[int | None]
    ) -> tuple[np.ndarray, int | None]:
        """Ranges of the stored weight and their axis, from those of the parts.

        1. One range for one part that was not rescaled: the same.
        2. One range for each output channel, or several parts, or rescaled: one for each channel.
        3. One range for each input channel: the same on the other axis of a single part that was not
           rescaled, else their largest.
        """
        arrays = [np.asarray(each, np.float64) for each in amax]
        if len(arrays) == 1 and not self.is_rescaled:
            axis = axes[0]
            return arrays[0], None if axis is None else self._stored_axis(axis)
        parts = [
            np.broadcast_to(each if self._is_output_axis(axis) else each.max(), (width,))
            for each, axis, width in zip(arrays, axes, self.widths, strict=True)
        ]
        return np.concatenate(parts) * np.abs(self.factors), self.channel_axis

    def _stored_axis(self, axis: int) -> int:
        return 1 - axis if self.swapped and axis < 2 else axis

    def _is_output_axis(self, axis: int | None) -> bool:
        return axis is not None and self._stored_axis(axis) == self.channel_axis


def layout_of(match: Weighted, parts: Sequence[np.ndarray | None]) -> Layout | str:
    """Compare a stored weight with the modules' own, or say in words why they do not belong together.

    Args:
        match: The node with the stored weight.
        parts: The modules' weights, side by side along the output channels.
    """
    tensor = match.weight.const_value
    if tensor is None or any(part is None for part in parts):
        return "its weight is not in the checkpoint"
    stored = np.asarray(tensor.numpy()).astype(np.float32)
    own = [np.asarray(part).astype(np.float32) for part in parts]
    for swapped in (False, True):
        turned = [np.swapaxes(each, 0, 1) if swapped else each for each in own]
        whole = _beside(turned, match.channel_axis)
        if whole is None or whole.shape != stored.shape:
            continue
        factors = _factors(stored, whole, match.channel_axis)
        if factors is not None:
            widths = tuple(each.shape[match.channel_axis] for each in turned)
            return Layout(swapped, match.channel_axis, widths, factors)
    return "the exported weight is not the checkpoint's, nor a multiple of it a channel"


def _beside(parts: Sequence[np.ndarray], axis: int) -> np.ndarray | None:
    shapes = {part.shape[:axis] + part.shape[axis + 1 :] for part in parts}
    if len(shapes) != 1 or any(part.ndim <= axis for part in parts):
        return None
    return np.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]


def _factors(stored: np.ndarray, own: np.ndarray, axis: int) -> np.ndarray | None:
    """``r`` with ``stored = own * r`` in each channel; None where there is none."""
    if np.array_equal(stored, own):
        return np.ones(stored.shape[axis])
    rows = np.moveaxis(stored, axis, 0).reshape(stored.shape[axis], -1).astype(np.float64)
    bases = np.moveaxis(own, axis, 0).reshape(rows.shape).astype(np.float64)
    power = (bases * bases).sum(1)
    factors = np.divide((rows * bases).sum(1), power, out=np.ones(len(rows)), where=power > 0)
    error = np.abs(rows - bases * factors[:, None]).max(1, initial=0.0)
    allowed = _RELATIVE * np.abs(rows).max(1, initial=0.0) + 1e-30
    return factors if bool((error <= allowed).all()) else None
