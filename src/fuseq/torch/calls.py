"""Calls of torch functions: the points of a running module that a plan can be applied to.

While ``torch.export`` traces a module, :class:`Recorder` notes every call of a torch function: in
which module, the how-manieth of its kind, and which FX nodes it made. The same module run later makes
the same calls in the same order, whatever Python surrounds them, so that (module, visit, kind, number)
names a call of the living module. Parameters and buffers, train and eval stay the module's own.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_DUNDERS: Mapping[str, str] = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "add_": "add",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "mul_": "mul",
    "__sub__": "sub", "__isub__": "sub", "sub_": "sub",
    "__matmul__": "matmul", "bmm": "matmul", "mm": "matmul",
    "concat": "cat", "concatenate": "cat", "relu_": "relu",
}  # fmt: skip
"""Spellings of one function; reversed operands (``__rmatmul__``) are a kind of their own."""

_INNER = "_fuseq_inner_forward"


@dataclasses.dataclass(frozen=True)
class CallKey:
    """One call in a forward pass.

    Attributes:
        scope: Path of the innermost module that runs ("" is the root).
        visit: How many times that module ran before in this forward pass.
        kind: Name of the function, spellings unified (:func:`kind_of`).
        number: How many calls of that kind this visit made before.
    """

    scope: str
    visit: int
    kind: str
    number: int


@dataclasses.dataclass(frozen=True)
class Call:
    """A recorded call and the FX nodes that it made in the exported program."""

    key: CallKey
    fx_nodes: tuple[str, ...]


def kind_of(func: Callable[..., Any]) -> str:
    """One word for a torch function, however it is spelled."""
    name = getattr(func, "__name__", "")
    return _DUNDERS.get(name, name)


def _without_override_check(function: Any) -> Callable[..., Any]:
    """The same code, which no longer asks whether a mode wants the whole call to itself."""
    names = {**function.__globals__, "has_torch_function": lambda *_: False}
    return types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )


LOOKED_INTO: Mapping[str, Callable[..., Any]] = {
    "multi_head_attention_forward": _without_override_check(
        torch.nn.functional.multi_head_attention_forward
    ),
}
"""Functions written in Python whose inner calls are seen one by one instead of the whole."""


class Recorder(TorchFunctionMode):
    """Notes calls while a module is traced by ``torch.export`` (non-strict)."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._paths = {id(module): path for path, module in root.named_modules()}
        self._stack: list[tuple[str, int, Counter[str]]] = []
        self._visits: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types_: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the call, then note it with the FX nodes that appeared."""
        looked_into = LOOKED_INTO.get(kind_of(func))
        if looked_into is not None:
            with self:
                return looked_into(*args, **(kwargs or {}))
        graph = _traced_graph()
        before = len(graph.nodes) if graph is not None else 0
        result = func(*args, **(kwargs or {}))
        if not self._stack:
            return result
        scope, visit, numbers = self._stack[-1]
        kind = kind_of(func)
        key = CallKey(scope, visit, kind, numbers[kind])
        numbers[kind] += 1
        if graph is not None:
            made = tuple(node.name for node in list(graph.nodes)[before:])
            self.calls.append(Call(key, made))
        return result

    def inside(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward; calls belong to it until it returns."""
        path = self._paths[id(module)]
        self._stack.append((path, self._visits[path], Counter()))
        self._visits[path] += 1
        try:
            if len(self._stack) > 1:
                return own_forward(module, *args, **kwargs)
            with self:
                return own_forward(module, *args, **kwargs)
        finally:
            self._stack.pop()


@contextmanager
def recording(root: nn.Module) -> Iterator[Recorder]:
    """Record the calls of ``root`` while the block runs; the module is left as it was."""
    recorder = Recorder(root)
    modules = list(root.modules())
    for module in modules:
        wrap_forward(module, recorder.inside)
    try:
        yield recorder
    finally:
        for module in modules:
            unwrap_forward(module)


def wrap_forward(module: nn.Module, around: Callable[..., Any]) -> None:
    """Let ``around(module, *args, **kwargs)`` run in the place of the module's forward.

    It is an attribute of the instance, which copies and pickles with the module, and has the
    signature of the class's forward (the Hugging Face Trainer reads it).
    """
    bound = functools.partial(around, module)
    bound.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
    if "forward" in vars(module):
        object.__setattr__(module, _INNER, vars(module)["forward"])
    module.forward = bound


def unwrap_forward(module: nn.Module) -> None:
    """Undo :func:`wrap_forward`."""
    vars(module).pop("forward", None)
    inner = vars(module).pop(_INNER, None)
    if inner is not None:
        module.forward = inner


def own_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward that :func:`wrap_forward` replaced: the class's, or one set on the instance."""
    inner = vars(module).get(_INNER)
    if inner is not None:
        return inner(*args, **kwargs)
    return type(module).forward(module, *args, **kwargs)


def _traced_graph() -> torch.fx.Graph | None:
    from torch.fx.experimental.proxy_tensor import get_proxy_mode  # noqa: PLC0415

    mode = get_proxy_mode()
    return mode.tracer.graph if mode is not None else None
