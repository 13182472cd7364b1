"""How the engine is built: for which GPU, and who decides the types of what stays float."""

from __future__ import annotations

import dataclasses
from typing import Literal

Typing = Literal["strong", "fp16", "fp32"]

_FIRST_TF32 = 80
"""Tensor cores take FP32 operands, rounded to TF32, from capability 8.0 (Ampere whitepaper)."""

DP4A_CHANNELS = 4
"""Convolutions of images (up to four channels) run as DP4A on CUDA cores: padding 3 channels to the
32 of the tensor-core layout would waste nine tenths (tactic ``int8x4`` of the ResNet-18 engines)."""


@dataclasses.dataclass(frozen=True)
class Builder:
    """Settings of one build.

    Attributes:
        capability: CUDA compute capability, 80 means 8.0.
        typing: ``strong``: every tensor has the type of the ONNX file (TensorRT 10's
            ``--stronglyTyped``, and the only way since 11). ``fp16`` and ``fp32``: the file is FP32
            and the compiler chooses, as ``trtexec --int8 --fp16`` and ``--int8`` do before 11.
    """

    capability: int
    typing: Typing = "strong"

    @property
    def is_strong(self) -> bool:
        """The file decides the types."""
        return self.typing == "strong"

    @property
    def has_tf32(self) -> bool:
        """FP32 products run on tensor cores."""
        return self.capability >= _FIRST_TF32
