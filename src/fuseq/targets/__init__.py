"""Targets: the only package that knows compilers."""

from __future__ import annotations

from fuseq.errors import OptionError
from fuseq.targets.base import Target, split_target

COMPILERS = ("tensorrt-rtx", "tensorrt", "onnxruntime", "torch")
"""Compilers that a target can name."""

KNOWN_TARGETS = (
    *(f"tensorrt-rtx:sm{capability}" for capability in (75, 80, 86, 89, 120, 121)),
    *(f"tensorrt:sm{capability}" for capability in (75, 80, 86, 89, 90, 120, 121)),
    "onnxruntime:cpu",
    "torch:cuda",
)
"""Every target, as users write it."""


def parse_target(text: str, gpu: str | None = None) -> Target:
    """Make the target called ``compiler:device``.

    Args:
        text: For example ``tensorrt-rtx:sm89`` or ``onnxruntime:cpu``.
        gpu: Name of the GPU that predictions assume; None for the default of the capability.

    Raises:
        OptionError: Unknown compiler, device or GPU; the message lists what is allowed.
    """
    compiler, device = split_target(text)
    if compiler == "tensorrt-rtx":
        from fuseq.targets.tensorrt_rtx import TensorRtRtx  # noqa: PLC0415

        return TensorRtRtx.parse(device, gpu)
    if compiler == "tensorrt":
        from fuseq.targets.tensorrt import TensorRtSimulated  # noqa: PLC0415

        return TensorRtSimulated.parse(device, gpu)
    if compiler == "onnxruntime":
        from fuseq.targets.onnxruntime_cpu import OnnxRuntimeCpu  # noqa: PLC0415

        return OnnxRuntimeCpu.parse(device)
    if compiler == "torch":
        from fuseq.targets.torch_cuda.target import TorchCuda  # noqa: PLC0415

        return TorchCuda.parse(device)
    raise OptionError(
        f"--target {text!r}: unknown compiler {compiler!r}; fuseq knows {', '.join(COMPILERS)}."
    )
