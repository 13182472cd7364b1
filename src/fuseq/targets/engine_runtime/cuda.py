"""The few CUDA calls that running an engine needs, through NVIDIA's ``cuda-bindings``.

Every call of the bindings returns ``(status, value ...)``; :func:`call` turns a status that is not
success into a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuseq.errors import MissingExtraError, TargetError


def import_runtime() -> Any:
    """``cuda.bindings.runtime``.

    Raises:
        MissingExtraError: The package is not installed.
    """
    try:
        from cuda.bindings import runtime  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("CUDA's Python bindings", "cuda") from error
    return runtime


def gpu_missing() -> str | None:
    """None when a GPU can be used here, else why not, in a few words."""
    try:
        runtime = import_runtime()
    except MissingExtraError as error:
        return f"no GPU here that fuseq could use: {error}"
    status, count = runtime.cudaGetDeviceCount()
    if int(status) != 0:
        return f"no GPU here ({_text(runtime, status)})"
    return None if count else "no GPU here"


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The value of a CUDA call, a tuple where there are several, None without any.

    Raises:
        TargetError: CUDA refused; the message names the call and CUDA's words.
    """
    status, *values = function(*arguments)
    if int(status) != 0:
        words = _text(import_runtime(), status)
        raise TargetError(f"{function.__name__} failed: {words}. Is another program on the GPU?")
    return values[0] if len(values) == 1 else tuple(values) or None


def _text(runtime: Any, status: Any) -> str:
    found = runtime.cudaGetErrorString(status)[1]
    return found.decode() if isinstance(found, bytes) else str(found)
