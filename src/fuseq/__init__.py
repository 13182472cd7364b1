"""fuseq: quantize models so that every Q/DQ pair pays for itself, proved by the compiler."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuseq.compiling import compile_model
    from fuseq.deployment.options import DeployOptions
    from fuseq.deployment.running import Deployed, deploy
    from fuseq.errors import FuseqError
    from fuseq.evaluate.compare import CompareOptions, compare
    from fuseq.fixing import Fixed, fix
    from fuseq.model import load, save
    from fuseq.options import QuantizeOptions
    from fuseq.placement.plan import Plan
    from fuseq.planning import plan
    from fuseq.quantizing import Quantized, quantize
    from fuseq.searching import Searched, SearchOptions, search
    from fuseq.sensing import sensitivity
    from fuseq.serving.session import Session
    from fuseq.targets import parse_target

__version__ = "0.1.0"

__all__ = [
    "CompareOptions",
    "DeployOptions",
    "Deployed",
    "Fixed",
    "FuseqError",
    "Plan",
    "QuantizeOptions",
    "Quantized",
    "SearchOptions",
    "Searched",
    "Session",
    "compare",
    "compile_model",
    "deploy",
    "fix",
    "load",
    "parse_target",
    "plan",
    "quantize",
    "save",
    "search",
    "sensitivity",
]

_HOMES = {
    "CompareOptions": "fuseq.evaluate.compare",
    "DeployOptions": "fuseq.deployment.options",
    "Deployed": "fuseq.deployment.running",
    "Fixed": "fuseq.fixing",
    "FuseqError": "fuseq.errors",
    "Plan": "fuseq.placement.plan",
    "QuantizeOptions": "fuseq.options",
    "Quantized": "fuseq.quantizing",
    "Session": "fuseq.serving.session",
    "SearchOptions": "fuseq.searching",
    "Searched": "fuseq.searching",
    "compare": "fuseq.evaluate.compare",
    "compile_model": "fuseq.compiling",
    "deploy": "fuseq.deployment.running",
    "fix": "fuseq.fixing",
    "load": "fuseq.model",
    "parse_target": "fuseq.targets",
    "plan": "fuseq.planning",
    "quantize": "fuseq.quantizing",
    "save": "fuseq.model",
    "search": "fuseq.searching",
    "sensitivity": "fuseq.sensing",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `import fuseq` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fuseq' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
