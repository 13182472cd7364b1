"""Whether one scale serves all channels of a weight, by the noise that it leaves in the smallest."""

from __future__ import annotations

import math

import numpy as np

from fuseq.formats import Format
from fuseq.placement.patterns import Weighted, constant_of

MIN_CHANNEL_SQNR_DB = 20.0
"""A weight whose tenth-percentile channel falls below this with one per-tensor INT8 scale gets
per-channel scales. 20 dB: the noise of the channel's output stays a tenth of its signal."""

FULL_CHANNEL_SQNR_DB = 40.0
"""The same under ``--policy full``, where speed is no reason: normal values whose largest is three
standard deviations keep 43 dB with a scale of their own, and one scale for all may lose 3 dB of it.
EfficientNet-Lite0 (208 crops, max): cosine 0.987 with 20 dB, 0.990 with 30 dB, 0.994 with 40 dB."""


def per_tensor_is_accurate(
    match: Weighted, fmt: Format, least_db: float = MIN_CHANNEL_SQNR_DB
) -> bool:
    """Whether one scale keeps nine channels of ten above ``least_db``.

    A floating format keeps its relative precision, so one scale serves all channels.
    """
    tensor = constant_of(match.weight)
    if fmt.is_float or tensor is None:
        return True
    return channel_sqnr_db(tensor.numpy(), match.channel_axis, fmt) >= least_db


def channel_sqnr_db(weight: np.ndarray, axis: int, fmt: Format) -> float:
    """Signal to noise, in dB, of the tenth-percentile channel of ``weight`` with one scale for all.

    Noise of a uniform step s is s^2 / 12 (Widrow and Kollar, Quantization Noise, chapter 5). Channels of
    zeros do not count; a weight of zeros has no noise.
    """
    array = np.moveaxis(weight.astype(np.float32), axis, 0)
    channels = array.reshape(array.shape[0], -1)
    step = float(np.abs(channels).max(initial=0.0)) / fmt.qmax
    power = np.square(channels).mean(axis=1)
    power = power[power > 0]
    if step == 0 or not power.size:
        return math.inf
    return float(np.percentile(10 * np.log10(power * 12 / step**2), 10))
