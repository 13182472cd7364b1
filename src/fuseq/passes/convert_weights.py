"""Convert one weight tensor to another float type, lazily where it is big."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.float_range import NUMPY_TYPES, largest

LAZY_BYTES = 1 << 20
"""Tensors that lie in a file and are bigger than this are converted when they are written."""


def converted(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    """Return ``tensor`` in ``dtype``, same shape and name; finite values never become infinite.

    A tensor in an external file above LAZY_BYTES becomes a lazy tensor that reads and converts
    each time it is asked, so that memory holds one weight at a time.
    """
    if tensor.dtype == dtype:
        return tensor
    if isinstance(tensor, (ir.ExternalTensor, ir.LazyTensor)) and tensor.nbytes > LAZY_BYTES:
        return ir.LazyTensor(
            lambda: _convert(tensor, dtype),
            dtype=dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            cache=False,
            name=tensor.name,
        )
    return _convert(tensor, dtype)


def _convert(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    array = np.asarray(tensor.numpy())
    limit = largest(dtype)
    narrows = tensor.dtype not in NUMPY_TYPES or largest(tensor.dtype) > limit
    if (
        narrows
        and array.size
        and not (float(array.min()) >= -limit and float(array.max()) <= limit)
    ):
        inside = np.clip(array, -limit, limit)  # NaN stays NaN
        array = np.where(np.isinf(array), array, inside)
    with np.errstate(over="ignore", under="ignore"):
        narrow = array.astype(NUMPY_TYPES[dtype])
    return ir.Tensor(narrow, dtype=dtype, shape=ir.Shape(narrow.shape), name=tensor.name)
