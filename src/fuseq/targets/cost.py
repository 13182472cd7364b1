"""The cost model: predicted time of a kernel on a GPU. Everything it says is a prediction.

A kernel takes ``launch + max(bytes / bandwidth, FLOPs / peak of its dtype)`` (the roofline model:
Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fuseq.targets.base import Kernel
from fuseq.targets.gpus import Gpu

LAUNCH_US = 2.0
"""From the start of one kernel to the start of the next inside a CUDA graph, when neither works."""


def predict_us(kernel: Kernel, gpu: Gpu) -> float:
    """Predicted time of ``kernel`` alone on ``gpu``, microseconds."""
    memory_us = (kernel.activation_bytes + kernel.weights_bytes) / (gpu.bandwidth_gbs * 1e3)
    compute_us = kernel.flops / (gpu.peak_tflops(kernel.compute_dtype) * 1e6)
    return LAUNCH_US + max(memory_us, compute_us)


def with_predictions(kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Kernel, ...]:
    """The same kernels, in launch order, each with ``predicted_us`` on ``gpu``."""
    return tuple(
        dataclasses.replace(kernel, predicted_us=predict_us(kernel, gpu)) for kernel in kernels
    )
