"""Give constants new values of the same shape and type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir


def set_constants(model: ir.Model, values: Mapping[str, np.ndarray]) -> None:
    """Replace initializers by name, in place; each keeps its type."""
    for name, array in values.items():
        value = model.graph.initializers[name]
        old = value.const_value
        assert old is not None  # whoever computed the new value has read the old one
        stored = np.ascontiguousarray(array).astype(old.dtype.numpy())
        value.const_value = ir.Tensor(stored.reshape(old.shape.numpy()), dtype=old.dtype, name=name)
