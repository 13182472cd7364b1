"""fuseq: quantize models so that every Q/DQ pair pays for itself, proved by the compiler."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuseq.compiling import compile_model
    from fuseq.errors import FuseqError
    from fuseq.fixing import Fixed, fix
    from fuseq.model import load, save
    from fuseq.options import QuantizeOptions
    from fuseq.placement.plan import Plan
    from fuseq.planning import plan
    from fuseq.quantizing import Quantized, quantize
    from fuseq.targets import parse_target

__version__ = "0.1.0"

__all__ = [
    "Fixed",
    "FuseqError",
    "Plan",
    "QuantizeOptions",
    "Quantized",
    "compile_model",
    "fix",
    "load",
    "parse_target",
    "plan",
    "quantize",
    "save",
]

_HOMES = {
    "Fixed": "fuseq.fixing",
    "FuseqError": "fuseq.errors",
    "Plan": "fuseq.placement.plan",
    "QuantizeOptions": "fuseq.options",
    "Quantized": "fuseq.quantizing",
    "compile_model": "fuseq.compiling",
    "fix": "fuseq.fixing",
    "load": "fuseq.model",
    "parse_target": "fuseq.targets",
    "plan": "fuseq.planning",
    "quantize": "fuseq.quantizing",
    "save": "fuseq.model",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `import fuseq` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fuseq' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
