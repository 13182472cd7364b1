"""Compute capabilities, as users write them (``sm89``), and the formats of their tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from fuseq.errors import OptionError, TargetError
from fuseq.formats import FP8, INT8, Format


def capability_of(device: str, compiler: str, allowed: Sequence[int], who: str) -> int:
    """The number in ``smNN``.

    Args:
        device: What the user wrote behind the colon.
        compiler: What stands before it.
        allowed: Capabilities that the compiler knows.
        who: Begins the sentence that lists them (``TensorRT-RTX builds for``).

    Raises:
        OptionError: Not one of ``allowed``.
    """
    digits = device.removeprefix("sm")
    if not digits.isdigit() or int(digits) not in allowed:
        known = ", ".join(f"sm{capability}" for capability in allowed)
        raise OptionError(f"--target {compiler}:{device}: {who} {known}; choose one.")
    return int(digits)


def tensor_core_formats(target: str, capability: int, user_format: str) -> tuple[Format, Format]:
    """Activation and weight format: INT8 from sm75, FP8 from sm89; both symmetric.

    TensorRT refuses zero points.

    Raises:
        TargetError: The GPU lacks the format.
    """
    fmt = FP8 if user_format == "fp8" else INT8
    if capability < fmt.first_capability:
        raise TargetError(
            f"{target} has no {fmt.name} tensor cores; they begin with "
            f"sm{fmt.first_capability}. Use --format int8 or a newer GPU."
        )
    return fmt, fmt
