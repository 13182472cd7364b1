"""Engines and plans as plain numbers for ``--json``; the tables print the same values."""

from __future__ import annotations

import dataclasses
from typing import Any

from fuseq.targets.base import Engine


def engine_numbers(engine: Engine, *, kernels: bool = False) -> dict[str, Any]:
    """Figures of an engine; with ``kernels``, every kernel too."""
    numbers: dict[str, Any] = {
        "target": engine.target,
        "kernels": len(engine.kernels),
        "alone": len(engine.alone),
        "activation_bytes": engine.activation_bytes,
        "weights_bytes": engine.weights_bytes,
        "engine_bytes": engine.engine_bytes,
        "predicted_us": round(engine.predicted_us, 3),
        "measured_us": None if engine.measured_us is None else round(engine.measured_us, 3),
        "compile_seconds": round(engine.compile_seconds, 3),
    }
    if kernels:
        numbers["kernel_list"] = [
            {
                **{k: v for k, v in dataclasses.asdict(kernel).items() if k != "type"},
                "type": kernel.type.value,
                "activation_bytes": kernel.activation_bytes,
                "is_alone": kernel.is_alone,
            }
            for kernel in engine.kernels
        ]
    return numbers
