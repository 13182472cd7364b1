"""Installs points on a module: each module that owns points runs its forward inside a scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from fuseq.torch.arguments import Arguments
from fuseq.torch.calls import LOOKED_INTO, kind_of, own_forward, unwrap_forward, wrap_forward
from fuseq.torch.points import CallPlan, Points
from fuseq.torch.running import run_call
from fuseq.torch.state import State

_SCOPE = "_fuseq_scope"
_FAST_PATHS = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""In eval mode these run as one native operator, unless a mode wants to see their calls."""

Table = Mapping[tuple[str, int], CallPlan]


@dataclasses.dataclass(eq=False)
class Scope:
    """One module of a prepared model.

    Attributes:
        state: Shared state.
        number: Tells scopes apart.
        tables: Points by kind and number of a call, one table for each visit in a forward pass.
        kinds: Functions that are counted.
        watches: Calls are looked at; else the module only hides its calls from those around it.
        visits: How often the module ran; only counted where visits differ.
    """

    state: State
    number: int
    tables: tuple[Table, ...]
    kinds: frozenset[str]
    watches: bool
    visits: int = 0

    def table(self) -> Table:
        """Points of the visit that begins."""
        if len(self.tables) == 1:
            return self.tables[0]
        self.visits += 1
        return self.tables[(self.visits - 1) % len(self.tables)]


class Quantizing(TorchFunctionMode):
    """Sees the calls of one module while its forward runs, and applies its points."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope
        self.calls = scope.table()
        self.numbers: dict[str, int] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the call, with its points if it has some."""
        scope = self.scope
        if scope.state.active != scope.number:
            return func(*args, **(kwargs or {}))
        kind = kind_of(func)
        looked_into = LOOKED_INTO.get(kind)
        if looked_into is not None:
            with self:
                return looked_into(*args, **(kwargs or {}))
        if kind not in scope.kinds:
            return func(*args, **(kwargs or {}))
        number = self.numbers.get(kind, 0)
        self.numbers[kind] = number + 1
        plan = self.calls.get((kind, number))
        if plan is None:
            return func(*args, **(kwargs or {}))
        return run_call(scope.state, plan, kind, func, Arguments(kind, args, kwargs))


def run_in_scope(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Forward of a module that has a scope."""
    scope: Scope = vars(module)[_SCOPE]
    state = scope.state
    if not (state.fake_quantize or state.observe or state.batch_norm_frozen):
        return own_forward(module, *args, **kwargs)
    outer, state.active = state.active, scope.number
    try:
        if not scope.watches:
            return own_forward(module, *args, **kwargs)
        with Quantizing(scope):
            return own_forward(module, *args, **kwargs)
    finally:
        state.active = outer


def install(root: nn.Module, points: Points, state: State) -> None:
    """Give scopes to the modules that own points, and to all modules inside them."""
    uninstall(root)
    tables = _tables(points)
    number = 0
    for path, module in root.named_modules():
        owner = path in tables
        if not (owner or isinstance(module, _FAST_PATHS) or _is_inside(path, tables)):
            continue
        own = tables.get(path, ({},))
        kinds = frozenset(kind for table in own for kind, _ in table)
        watches = owner or isinstance(module, _FAST_PATHS)
        object.__setattr__(module, _SCOPE, Scope(state, number, own, kinds, watches))
        wrap_forward(module, run_in_scope)
        number += 1


def uninstall(root: nn.Module) -> None:
    """Take all scopes away."""
    for module in root.modules():
        if vars(module).pop(_SCOPE, None) is not None:
            unwrap_forward(module)


def _tables(points: Points) -> dict[str, tuple[Table, ...]]:
    """Tables by module path, one a visit; a module whose visits are alike has one."""
    visits: dict[str, dict[int, dict[tuple[str, int], CallPlan]]] = {}
    for key, plan in points.calls.items():
        table = visits.setdefault(key.scope, {}).setdefault(key.visit, {})
        table[(key.kind, key.number)] = plan
    found: dict[str, tuple[Table, ...]] = {}
    for path, by_visit in visits.items():
        count = max(max(by_visit) + 1, points.visits.get(path, 1))
        tables = tuple(by_visit.get(visit, {}) for visit in range(count))
        found[path] = tables[:1] if all(table == tables[0] for table in tables) else tables
    return found


def _is_inside(path: str, owners: Mapping[str, Any]) -> bool:
    while path:
        path = path.rpartition(".")[0]
        if path in owners:
            return True
    return False
