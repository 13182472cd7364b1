"""What a pass tells its user, as data."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Note:
    """One sentence about the model, and the names of the nodes it is about."""

    text: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text
