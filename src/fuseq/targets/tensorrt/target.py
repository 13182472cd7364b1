"""The target that stands for full TensorRT where it is not installed."""

from __future__ import annotations

import dataclasses
import time

import onnx_ir as ir

from fuseq.formats import Format
from fuseq.targets.base import Engine, ShapeProfile
from fuseq.targets.capabilities import capability_of, tensor_core_formats
from fuseq.targets.cost import with_predictions
from fuseq.targets.fusion import FusionRules
from fuseq.targets.gpus import Gpu, gpu_for
from fuseq.targets.tensorrt.builder import Builder, Typing
from fuseq.targets.tensorrt.rules import rules_for
from fuseq.targets.tensorrt.simulate import simulate

CAPABILITIES = (75, 80, 86, 89, 90, 120, 121)
"""Compute capabilities that TensorRT 10 and 11 build for and the GPU table has numbers of."""

SIMULATED = (
    "predicted by fuseq's fusion model of TensorRT, not by the compiler: layer list and times are "
    "not measured"
)


@dataclasses.dataclass(frozen=True)
class TensorRtSimulated:
    """TensorRT's fusion model for one GPU.

    Attributes:
        capability: CUDA compute capability, 80 means 8.0.
        gpu: The GPU that predicted times assume.
        typing: See :class:`fuseq.targets.tensorrt.builder.Builder`.
    """

    capability: int
    gpu: Gpu
    typing: Typing = "strong"

    @staticmethod
    def parse(device: str, gpu: str | None = None) -> TensorRtSimulated:
        """Make the target from ``smNN``.

        Raises:
            OptionError: The device is not a capability that TensorRT builds for.
        """
        number = capability_of(device, "tensorrt", CAPABILITIES, "the fusion model knows")
        return TensorRtSimulated(number, gpu_for(number, gpu))

    @property
    def name(self) -> str:
        """As users write it."""
        return f"tensorrt:sm{self.capability}"

    @property
    def precision(self) -> str:
        """Tensor cores take FP16."""
        return "fp16"

    @property
    def predicts(self) -> bool:
        """Every kernel carries the cost model's time."""
        return True

    def rules(self, user_format: str) -> FusionRules:
        """What TensorRT fuses around Q/DQ of the format.

        Raises:
            TargetError: The GPU lacks the format.
        """
        return rules_for(self.storage_formats(user_format)[0], self.capability)

    def prepare(self, model: ir.Model) -> list[str]:
        """The canonical form is what this compiler fuses best."""
        return []

    def storage_formats(self, user_format: str) -> tuple[Format, Format]:
        """INT8 from sm75, FP8 from sm89; both symmetric.

        Raises:
            TargetError: The GPU lacks the format.
        """
        return tensor_core_formats(self.name, self.capability, user_format)

    def compile(self, model: ir.Model, profile: ShapeProfile, *, keep_plan: bool = False) -> Engine:
        """Predict the engine; every kernel carries its predicted time, and there is never a plan file.

        Raises:
            TargetError: TensorRT would refuse the model; the message names the node.
        """
        started = time.perf_counter()
        kernels, notes = simulate(model, profile, Builder(self.capability, self.typing))
        predicted = with_predictions(kernels, self.gpu)
        return Engine(
            target=self.name,
            kernels=predicted,
            engine_bytes=sum(kernel.weights_bytes for kernel in predicted),
            compile_seconds=time.perf_counter() - started,
            notes=(SIMULATED, *notes),
        )

    def missing(self) -> str | None:
        """None: the fusion model is part of fuseq. Its engines say that they are predicted."""
        return None
