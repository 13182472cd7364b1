"""Target ``torch:cuda``: a plan run by PyTorch with 8-bit kernels, on any GPU that has them."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from fuseq.errors import MissingExtraError, OptionError, TargetError
from fuseq.formats import FP8, INT8, Format
from fuseq.targets.base import Engine, ShapeProfile
from fuseq.targets.fusion import FusionRules

if TYPE_CHECKING:
    from fuseq.targets.torch_cuda.compiled import Compiled

_FIRST_CAPABILITY = (8, 0)
_NO_GPU = "PyTorch sees no NVIDIA GPU here; plan here and run where there is one."


@dataclasses.dataclass(frozen=True)
class TorchCuda:
    """PyTorch on the first visible NVIDIA GPU.

    Plans are made on any machine. Without a GPU :meth:`run` computes the same numbers on the CPU,
    slowly, and :meth:`compile` refuses.
    """

    @staticmethod
    def parse(device: str) -> TorchCuda:
        """Make the target from ``cuda``.

        Raises:
            OptionError: Another device.
        """
        if device != "cuda":
            raise OptionError(
                f"--target torch:{device}: PyTorch runs plans on NVIDIA GPUs; write torch:cuda."
            )
        return TorchCuda()

    @property
    def name(self) -> str:
        """As users write it."""
        return "torch:cuda"

    @property
    def precision(self) -> str:
        """Tensor cores take FP16."""
        return "fp16"

    @property
    def predicts(self) -> bool:
        """Its kernels are measured, not predicted."""
        return False

    def rules(self, user_format: str) -> FusionRules:
        """What its kernels take.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        _need_torch()
        from fuseq.targets.torch_cuda.rules import rules_for  # noqa: PLC0415

        return rules_for(self.storage_formats(user_format)[0])

    def storage_formats(self, user_format: str) -> tuple[Format, Format]:
        """Symmetric INT8 or FP8, for activations and weights."""
        fmt = FP8 if user_format == "fp8" else INT8
        return fmt, fmt

    def compile(self, model: ir.Model, profile: ShapeProfile, *, keep_plan: bool = False) -> Engine:
        """Run under PyTorch's profiler; every kernel carries its measured time.

        Args:
            model: Typed, with Q/DQ or without.
            profile: Static shapes; only ``optimum`` is used.
            keep_plan: Not used: there is no engine file.

        Raises:
            TargetError: There is no GPU, or an operator that this target does not run.
        """
        gap = self.missing()
        if gap is not None:
            raise TargetError(f"torch:cuda: {gap}")
        from fuseq.targets.torch_cuda.profile import profiled  # noqa: PLC0415

        return profiled(model, profile, self.name)

    def compiled(self, model: ir.Model) -> Compiled:
        """The model as a callable, on the GPU if there is one.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        _need_torch()
        import torch  # noqa: PLC0415

        from fuseq.targets.torch_cuda.compiled import Compiled  # noqa: PLC0415

        return Compiled(model, torch.device("cpu" if self.missing() else "cuda"))

    def run(self, model: ir.Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once; outputs by name, as float32 where NumPy lacks the type.

        Raises:
            ModelError: An input is missing or has the wrong rank.
            TargetError: An operator that this target does not run.
        """
        compiled = self.compiled(model)
        import torch  # noqa: PLC0415

        names = [value.name or "" for value in model.graph.inputs]
        absent = [name for name in names if name not in feeds]
        if absent:
            raise TargetError(f"torch:cuda: no array for input {absent[0]!r}.")
        results = compiled(*(torch.from_numpy(np.ascontiguousarray(feeds[n])) for n in names))
        outputs = [value.name or "" for value in model.graph.outputs]
        return {
            name: (result.float() if result.dtype == torch.bfloat16 else result).cpu().numpy()
            for name, result in zip(outputs, results, strict=True)
        }

    def missing(self) -> str | None:
        """None, or the sentence that says what is not there."""
        if importlib.util.find_spec("torch") is None:
            return str(MissingExtraError("PyTorch", "torch"))
        if not _has_driver():  # asked first: importing torch takes seconds
            return _NO_GPU
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            return _NO_GPU
        if torch.cuda.get_device_capability() < _FIRST_CAPABILITY:
            return "its kernels need compute capability 8.0 (A100) for INT8 and 8.9 for FP8."
        return None


def _has_driver() -> bool:
    """Whether NVIDIA's driver is installed; always true where its library has another name."""
    if platform.system() != "Linux":
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("PyTorch", "torch")
