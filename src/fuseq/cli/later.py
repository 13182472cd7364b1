"""Puts off imports that a command hardly ever needs, so that it starts sooner.

onnx_ir imports sympy, which reckons with sizes that are expressions of other sizes: half a processor
second and 25 MB of every process. No file that is not exported with such sizes needs it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

PUT_OFF = ("sympy", "onnx_ir._symbolic_shapes")
"""sympy, and the one module of onnx_ir that uses it while it is imported."""


class Later(ModuleType):
    """Stands where a module will be, and becomes it when it is asked for anything."""

    def __getattr__(self, name: str) -> Any:
        """Import the module; not for what looks around among all modules, at their files and names."""
        if name.startswith("__") and name != "__path__":  # asked for by an import of a submodule
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        real = importlib.import_module(self.__name__)
        self.__dict__.update(real.__dict__)
        return getattr(real, name)


def put_off_imports() -> None:
    """Put off the modules of :data:`PUT_OFF` that are not imported yet; for a process of our own."""
    for name in PUT_OFF:
        sys.modules.setdefault(name, Later(name))
