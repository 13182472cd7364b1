"""The files that the real ModelOpt 0.47 wrote (benchmarks/modelopt_artefacts.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "modelopt"


def recorded(name: str) -> Any:
    """One of the JSON files."""
    return json.loads((DATA / name).read_text())
