"""What kept libraries log on the way is not the user's concern: their failures are answered by ours."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

LIBRARIES = ("onnx_ir", "onnxscript", "torch.onnx")


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hold back the logs of onnx_ir, onnxscript and torch.onnx within the block.

    onnx_ir logs tracebacks for graphs that its shape inference cannot take, onnxscript a line for
    each constant that it does not fold, torch.onnx a line for each operator of an absent library.
    """
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
