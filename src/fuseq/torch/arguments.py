"""Arguments of torch functions by role, wherever they stand: by position, by name, or in a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLACES: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "input": (0, ("input", "self")),
    "other": (1, ("other", "mat2", "tensor2")),
    "weight": (1, ("weight",)),
    "bias": (2, ("bias",)),
    "mat1": (1, ("mat1", "batch1")),
    "mat2": (2, ("mat2", "batch2")),
    "query": (0, ("query",)),
    "key": (1, ("key",)),
    "value": (2, ("value",)),
    "tensors": (0, ("tensors",)),
    "training": (5, ("training",)),
}
_REVERSED = {"input": "other", "other": "input"}


class Arguments:
    """Positional and keyword arguments of one call, to be read and replaced by role."""

    def __init__(self, kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> None:
        self.args = list(args)
        self.kwargs = dict(kwargs or {})
        self._reversed = kind == "__rmatmul__"

    def get(self, role: str) -> Any:
        """The argument; None where it was not given."""
        base, _, number = role.partition(".")
        position, names = self._place(base)
        if position < len(self.args):
            found = self.args[position]
        else:
            found = next((self.kwargs[name] for name in names if name in self.kwargs), None)
        return found[int(number)] if number and found is not None else found

    def set(self, role: str, value: Any) -> None:
        """Replace the argument, or add it by its first name."""
        base, _, number = role.partition(".")
        if number:
            items = list(self.get(base))
            items[int(number)] = value
            value = tuple(items)
        position, names = self._place(base)
        if position < len(self.args):
            self.args[position] = value
        else:
            name = next((name for name in names if name in self.kwargs), names[0])
            self.kwargs[name] = value

    def _place(self, base: str) -> tuple[int, tuple[str, ...]]:
        return _PLACES[_REVERSED.get(base, base) if self._reversed else base]
