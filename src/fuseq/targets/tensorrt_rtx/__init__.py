"""Target ``tensorrt-rtx:smNN``: NVIDIA's TensorRT-RTX compiler, on a machine with or without a GPU."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from fuseq.errors import MissingExtraError
from fuseq.formats import Format
from fuseq.source_lines import source_line
from fuseq.targets.base import Engine, ShapeProfile
from fuseq.targets.capabilities import capability_of, tensor_core_formats
from fuseq.targets.cost import with_predictions
from fuseq.targets.fusion import FusionRules
from fuseq.targets.gpus import Gpu, gpu_for
from fuseq.targets.tensorrt_rtx.compiler import CAPABILITIES, build, import_compiler
from fuseq.targets.tensorrt_rtx.kernels import kernels_of
from fuseq.targets.tensorrt_rtx.layers import parse_layers
from fuseq.targets.tensorrt_rtx.rules import rules_for


@dataclasses.dataclass(frozen=True)
class TensorRtRtx:
    """The TensorRT-RTX compiler for one compute capability; ``gpu`` is what predictions assume."""

    capability: int
    gpu: Gpu

    @staticmethod
    def parse(device: str, gpu: str | None = None) -> TensorRtRtx:
        """Make the target from ``smNN``.

        Raises:
            OptionError: The device is not a capability that TensorRT-RTX builds for.
        """
        who = "TensorRT-RTX builds for"
        number = capability_of(device, "tensorrt-rtx", tuple(CAPABILITIES), who)
        return TensorRtRtx(number, gpu_for(number, gpu))

    @property
    def name(self) -> str:
        """As users write it."""
        return f"tensorrt-rtx:sm{self.capability}"

    @property
    def precision(self) -> str:
        """Tensor cores take FP16."""
        return "fp16"

    @property
    def predicts(self) -> bool:
        """Every kernel carries the cost model's time."""
        return True

    @property
    def compiler_library(self) -> str:
        """It lets the interpreter go on while it compiles; it compiles one model at a time."""
        return "the TensorRT-RTX builder"

    def rules(self, user_format: str) -> FusionRules:
        """What the compiler fuses around Q/DQ of the format.

        Raises:
            TargetError: The GPU lacks the format.
        """
        return rules_for(self.storage_formats(user_format)[0])

    def storage_formats(self, user_format: str) -> tuple[Format, Format]:
        """INT8 needs no more than sm75, FP8 sm89; both symmetric (TensorRT refuses zero points).

        Raises:
            TargetError: The GPU lacks the format.
        """
        return tensor_core_formats(self.name, self.capability, user_format)

    def compile(self, model: ir.Model, profile: ShapeProfile, *, keep_plan: bool = False) -> Engine:
        """Compile strongly typed; every kernel carries its predicted time.

        Raises:
            MissingExtraError: The wheels are not installed.
            TargetError: The compiler refused the model, with its own words.
        """
        result = build(model, profile, self.capability)
        nodes = list(model.graph.all_nodes())
        op_types = {node.name or "": node.op_type for node in nodes}
        lines = {node.name or "": line for node in nodes if (line := source_line(node))}
        kernels = kernels_of(parse_layers(result.layers_text), op_types, lines)
        return Engine(
            target=self.name,
            kernels=with_predictions(kernels, self.gpu),
            plan_bytes=result.plan if keep_plan else None,
            engine_bytes=len(result.plan),
            compile_seconds=result.seconds,
            notes=result.warnings,
        )

    def missing(self) -> str | None:
        """None, or the sentence that says what to install."""
        try:
            import_compiler()
        except MissingExtraError as error:
            return str(error)
        return None
