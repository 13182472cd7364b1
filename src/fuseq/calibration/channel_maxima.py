"""Largest magnitude by channel of tensors of the float model, over calibration data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.calibration.refine import inputs_of_layers

_TOGETHER = 8
"""Tensors of one pass over the data: all of a batch are in memory at once."""


def channel_maxima(model: ir.Model, names: Sequence[str], source: Source) -> dict[str, np.ndarray]:
    """Maxima over all axes but the last, float64 [channels], by tensor name.

    Raises:
        CalibrationError: The data does not fit.
        ModelError: ONNX Runtime cannot open the model.
    """
    found: dict[str, np.ndarray] = {}
    for start in range(0, len(names), _TOGETHER):
        for tensors in inputs_of_layers(model, names[start : start + _TOGETHER], source):
            for name, array in tensors.items():
                largest = np.abs(array).max(axis=tuple(range(array.ndim - 1))).astype(np.float64)
                found[name] = np.maximum(found.get(name, 0.0), largest)
    return found
