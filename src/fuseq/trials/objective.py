"""What a search makes small: predicted latency, bytes moved, or the engine's size."""

from __future__ import annotations

import dataclasses
from typing import Literal

from fuseq.errors import OptionError
from fuseq.targets.base import Engine, Kernel

Objective = Literal["latency", "bytes", "size"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "bytes", "size")

UNITS = {"latency": "us", "bytes": "bytes", "size": "bytes"}


@dataclasses.dataclass(frozen=True)
class Score:
    """An engine's value under an objective; smaller is better.

    Attributes:
        value: Microseconds, bytes moved, or bytes of the engine.
        unit: ``us`` or ``bytes``.
        measured: It was measured, not predicted.
    """

    value: float
    unit: str
    measured: bool


def check_objective(text: str) -> Objective:
    """Return the objective called ``text``.

    Raises:
        OptionError: There is none.
    """
    for known in OBJECTIVES:
        if known == text:
            return known
    raise OptionError(f"--objective {text!r} is unknown; choose one of {', '.join(OBJECTIVES)}.")


def score(engine: Engine, objective: Objective) -> Score:
    """The engine's value: latency in microseconds (measured where it was), activation and weight
    bytes moved, or bytes of the engine file."""
    if objective == "bytes":
        return Score(engine.activation_bytes + engine.weights_bytes, "bytes", False)
    if objective == "size":
        return Score(engine.engine_bytes or engine.weights_bytes, "bytes", False)
    measured = engine.measured_us
    if measured is not None:
        return Score(measured, "us", True)
    return Score(engine.predicted_us, "us", False)


def kernel_value(kernel: Kernel, objective: Objective) -> float:
    """A kernel's part of :func:`score`; for ``size`` its constants, which fill the engine."""
    if objective == "bytes":
        return float(kernel.activation_bytes + kernel.weights_bytes)
    if objective == "size":
        return float(kernel.weights_bytes)
    time_us = kernel.predicted_us if kernel.measured_us is None else kernel.measured_us
    return time_us or 0.0
