"""The number formats that a tensor can be quantized to, as frozen data.

Sources: ONNX QuantizeLinear (ranges and saturation, https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html),
OCP 8-bit Floating Point Specification 1.0 (E4M3: largest finite value 448, no infinity),
NVIDIA TensorRT documentation, "Working with Quantized Types" (symmetric INT8, zero point 0).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Format:
    """One number format.

    Attributes:
        name: How users spell it.
        dtype: ONNX type that stores the quantized values.
        qmin: Smallest quantized value that is used.
        qmax: Largest quantized value that is used.
        symmetric: The zero point is always 0 and the scale is ``amax / qmax``.
        is_float: The quantized values are floating point (rounded to the format, saturated).
        first_opset: First ONNX opset whose QuantizeLinear and DequantizeLinear know the type.
        first_capability: First CUDA compute capability (75 means 7.5) whose tensor cores run it;
            0 where the format never reaches a GPU.
    """

    name: str
    dtype: ir.DataType
    qmin: float
    qmax: float
    symmetric: bool
    is_float: bool
    first_opset: int
    first_capability: int

    @property
    def bits(self) -> int:
        """Storage bits of one value."""
        return int(self.dtype.itemsize * 8)

    def scale_of(self, amax: np.ndarray | float) -> np.ndarray:
        """Scale of a symmetric range: ``amax / qmax``, same shape as ``amax``, float32."""
        return np.asarray(np.asarray(amax, dtype=np.float64) / self.qmax, dtype=np.float32)


INT8 = Format("int8", ir.DataType.INT8, -128, 127, True, False, 10, 75)
UINT8 = Format("uint8", ir.DataType.UINT8, 0, 255, False, False, 10, 0)
INT7 = Format("int7", ir.DataType.INT8, -64, 63, True, False, 10, 0)
FP8 = Format("fp8", ir.DataType.FLOAT8E4M3FN, -448.0, 448.0, True, True, 19, 89)

FORMATS: tuple[Format, ...] = (INT8, UINT8, INT7, FP8)
"""Every storage format. ``int7`` is INT8 storage with a reduced range: on x86 without VNNI the
u8 x s8 product of two neighbours must not overflow 16 bits (ONNX Runtime documentation,
"Quantize ONNX models", section on ``reduce_range``)."""

USER_FORMATS: tuple[str, ...] = ("int8", "fp8")
"""What ``--format`` accepts; the target chooses the storage formats behind it."""


def format_named(name: str) -> Format:
    """Return the format called ``name``.

    Raises:
        OptionError: No format has that name.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    raise OptionError(
        f"--format {name!r} is not a format; choose one of {', '.join(USER_FORMATS)}."
    )
