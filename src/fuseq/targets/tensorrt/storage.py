"""How a kernel stores a tensor: type and layout, the words of TensorRT's layer lists, and its bytes.

Layouts: TensorRT documentation, "Data Format Descriptions". Which kernel wants which is read off the
five ResNet-18 engines on an A100 (trt-engine-explorer examples).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from fuseq.targets.layer_formats import stored_bytes
from fuseq.targets.tensorrt.builder import DP4A_CHANNELS, Builder

LINEAR = "Row major linear"
CHW2 = "Two wide channel vectorized row major"
CHW4 = "Four wide channel vectorized row major"
CHW32 = "Thirty-two wide channel vectorized row major"
HWC4 = "Channel major where channel % 4 == 0"
HWC8 = "Channel major where channel % 8 == 0"
HWC16 = "Channel major where channel % 16 == 0"


@dataclasses.dataclass(frozen=True)
class Storage:
    """``dtype`` is a word of TensorInfo, ``layout`` one of the constants above."""

    dtype: str
    layout: str

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of ``shape``, channel padding included."""
        return stored_bytes(shape, self.dtype, self.layout)

    def is_free_from(self, other: Storage, shape: Sequence[int]) -> bool:
        """The same bytes: one pixel an image, so that the layouts coincide."""
        if self == other:
            return True
        return (
            self.dtype == other.dtype
            and math.prod(shape[2:]) == 1
            and self.nbytes(shape) == other.nbytes(shape)
        )


def product_storage(dtype: str, channels: int, builder: Builder) -> Storage:
    """What a convolution reads: vectors of 32 INT8, 16 FP8 or 8 FP16 channels, 4 for an image.

    FP32 goes through tensor cores (TF32) in the channel-major layout, images row by row on CUDA cores.
    """
    is_image = channels <= DP4A_CHANNELS
    if dtype == "int8":
        return Storage(dtype, CHW4 if is_image else CHW32)
    if dtype == "fp8":
        return Storage(dtype, HWC16)
    if dtype in ("fp16", "bf16"):
        return Storage(dtype, HWC4 if is_image else HWC8)
    return Storage(dtype, HWC4 if builder.has_tf32 and not is_image else LINEAR)


def written_by_int8(dtype: str) -> Storage:
    """What an INT8 convolution writes: INT8 and FP16 in vectors of 32 channels, FP32 row by row."""
    return Storage(dtype, LINEAR if dtype == "fp32" else CHW32)
