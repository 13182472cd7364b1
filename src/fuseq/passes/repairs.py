"""What was mended in a quantized file, as data."""

from __future__ import annotations

import dataclasses
from typing import Literal

Fault = Literal[
    "qoperator", "decomposed", "private", "dynamic", "zero point", "bad scale", "int32 bias",
    "saturation", "channel scales", "stored weight", "left",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Repair:
    """One thing that was mended, or could not be (``left``).

    Attributes:
        fault: What kind of thing.
        tensor: The value it is about, by its name in the float graph.
        nodes: Nodes of the file that it is about.
        text: One sentence: what was found and what became of it.
    """

    fault: Fault
    tensor: str
    nodes: tuple[str, ...]
    text: str
