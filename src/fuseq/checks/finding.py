"""One thing that a rule says about a model or an engine."""

from __future__ import annotations

import dataclasses
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""``error``: the target refuses the file or computes nonsense; ``warning``: time or accuracy is lost;
``note``: worth knowing, does not change the exit code."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a fault costs.

    Attributes:
        us: Microseconds of one inference; None when nothing here can tell.
        nbytes: Activation bytes moved for nothing; None when shapes are unknown.
        measured: ``us`` was measured by a profiler; else it is a prediction.
    """

    us: float | None = None
    nbytes: int | None = None
    measured: bool = False


UNKNOWN_COST = Cost()


@dataclasses.dataclass(frozen=True)
class Finding:
    """A fault, where it is, what it costs and how it is mended.

    Attributes:
        code: Code of the rule.
        severity: How bad.
        node: Name of the ONNX node; "" when the finding is about the whole file.
        tensor: Name of the ONNX value; "" when none is meant.
        source: Line of the user's own model code, "" when the file does not carry it.
        message: What is wrong, one or two sentences.
        fix: What to do.
        cost: What it costs.
        confirmed: Seen in an engine that the target's own compiler made, or in its refusal.
        target: The target that it was found for.
    """

    code: str
    severity: Severity
    node: str
    tensor: str
    source: str
    message: str
    fix: str
    cost: Cost = UNKNOWN_COST
    confirmed: bool = False
    target: str = ""
