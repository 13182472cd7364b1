"""What one trial gave, as data that survives the process: an engine's kernels, or the refusal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from fuseq.targets.base import Engine, Kernel, KernelType, TensorInfo

OUTCOME_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One plan, compiled.

    Attributes:
        engine: What the compiler made; None where it refused the plan.
        served: Regions that each inserted node serves, by node name.
        refusal: The compiler's words where it refused, else "".
        seconds: Wall seconds of the trial where it ran; a cached trial keeps the first run's.
    """

    engine: Engine | None
    served: Mapping[str, tuple[str, ...]]
    refusal: str
    seconds: float

    def to_json(self) -> str:
        """Serialize, without the engine's plan file."""
        return json.dumps(
            {
                "version": OUTCOME_VERSION,
                "engine": None if self.engine is None else _engine_data(self.engine),
                "served": {node: list(regions) for node, regions in self.served.items()},
                "refusal": self.refusal,
                "seconds": self.seconds,
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> Outcome | None:
        """Parse; None where the text is damaged or of another version: the trial runs again."""
        try:
            data = json.loads(text)
            if data["version"] != OUTCOME_VERSION:
                return None
            return Outcome(
                engine=None if data["engine"] is None else _engine_from(data["engine"]),
                served={str(node): tuple(map(str, r)) for node, r in data["served"].items()},
                refusal=str(data["refusal"]),
                seconds=float(data["seconds"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return None


def _engine_data(engine: Engine) -> dict[str, Any]:
    return {
        "target": engine.target,
        "engine_bytes": engine.engine_bytes,
        "compile_seconds": engine.compile_seconds,
        "kernels": [_kernel_data(kernel) for kernel in engine.kernels],
    }


def _kernel_data(kernel: Kernel) -> list[Any]:
    return [
        kernel.name,
        kernel.type.value,
        kernel.compiler_type,
        [_tensor_data(tensor) for tensor in kernel.inputs],
        [_tensor_data(tensor) for tensor in kernel.outputs],
        kernel.weights_bytes,
        kernel.flops,
        kernel.compute_dtype,
        list(kernel.nodes),
        kernel.predicted_us,
        kernel.measured_us,
    ]


def _tensor_data(tensor: TensorInfo) -> list[Any]:
    return [tensor.name, list(tensor.shape), tensor.dtype, tensor.nbytes]


def _engine_from(data: dict[str, Any]) -> Engine:
    return Engine(
        target=str(data["target"]),
        kernels=tuple(_kernel_from(item) for item in data["kernels"]),
        engine_bytes=int(data["engine_bytes"]),
        compile_seconds=float(data["compile_seconds"]),
    )


def _kernel_from(data: list[Any]) -> Kernel:
    name, kind, word, inputs, outputs, weights_bytes, flops, dtype, nodes, predicted, measured = (
        data
    )
    return Kernel(
        name=str(name),
        type=KernelType(kind),
        compiler_type=str(word),
        inputs=tuple(_tensor_from(item) for item in inputs),
        outputs=tuple(_tensor_from(item) for item in outputs),
        weights_bytes=int(weights_bytes),
        flops=int(flops),
        compute_dtype=str(dtype),
        nodes=tuple(str(node) for node in nodes),
        predicted_us=None if predicted is None else float(predicted),
        measured_us=None if measured is None else float(measured),
    )


def _tensor_from(data: list[Any]) -> TensorInfo:
    name, shape, dtype, nbytes = data
    return TensorInfo(str(name), tuple(int(dim) for dim in shape), str(dtype), int(nbytes))
