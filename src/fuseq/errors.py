"""The one exception family: every message names what, what was found, what is allowed, and the next step."""

from __future__ import annotations


class FuseqError(Exception):
    """Base of every error that fuseq raises on purpose. The CLI prints it as one line and exits 2."""


class ModelError(FuseqError):
    """The model file or graph cannot be used: not ONNX, truncated, missing or unsafe external data."""


class CalibrationError(FuseqError):
    """The calibration data does not fit the model: wrong name, rank, dtype, NaN, or empty."""


class TargetError(FuseqError):
    """The target is unknown, not installed, lacks the format, or its compiler refused the model."""


class PlanError(FuseqError):
    """The plan does not fit the model, or its file is damaged."""


class OptionError(FuseqError):
    """An option has a value that is not allowed."""


class MissingExtraError(FuseqError):
    """An optional dependency is not installed; the message is the `pip install` to type."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed: run `pip install 'fuseq[{extra}]'`.")
        self.extra = extra
