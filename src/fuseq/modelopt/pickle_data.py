"""Read the data in a pickle without unpickling it.

A pickle is a program for a stack machine. The ``pickle`` module runs that program with the right to
import any name and call it; this module runs it on a machine that has neither importing nor calling
(opcodes: Python's ``pickletools``, "A pickle disassembler"):

1. A constant, list, tuple, dict or set opcode builds that plain value.
2. A global (GLOBAL, STACK_GLOBAL) becomes a :class:`Named`, a record of two strings. Nothing is
   imported.
3. A call (REDUCE, NEWOBJ) becomes a :class:`Call`, a record of a name and its arguments, unless the
   caller of :func:`read_pickle` hands in a builder of its own for exactly that name; nothing that
   the file names is ever called. The state of an object (BUILD) is dropped.
4. A persistent id (BINPERSID) goes to the caller's function.
5. Every other opcode is refused by name.

So a file can at worst describe data that makes no sense, which its reader then refuses.
"""

from __future__ import annotations

import dataclasses
import pickletools
from collections.abc import Callable, Mapping
from typing import Any

from fuseq.errors import ModelError


@dataclasses.dataclass(frozen=True)
class Named:
    """A global that a file names; a record, never the thing."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that a file asks for; a record, never made."""

    function: Named
    arguments: tuple[Any, ...]


Builder = Callable[[tuple[Any, ...]], Any]
Builders = Mapping[str, Builder]
"""fuseq's own functions by the dotted name that stands in a file."""

_CONSTANTS: Mapping[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
        "BINBYTES8", "BINSTRING", "SHORT_BINSTRING",
    }
)  # fmt: skip
_FIXED_TUPLES: Mapping[str, int] = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME"})


class _Mark:
    """Where a MARK opcode stands on the stack."""


_MARK = _Mark()


def read_pickle(
    data: bytes, origin: str, builders: Builders, persistent: Callable[[Any], Any]
) -> Any:
    """Return the value that ``data`` describes, of plain containers, :class:`Named` and :class:`Call`.

    Args:
        data: A pickle of any protocol.
        origin: What to call it in messages.
        builders: What to make of a call, by the called name; results must be inert data.
        persistent: What to make of a persistent id.

    Raises:
        ModelError: Not a pickle, truncated, or an opcode that is not data.
    """
    machine = _Machine(builders, persistent)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.pop()
            machine.step(opcode.name, argument)
    except ModelError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        raise ModelError(
            f"{origin}: damaged or not a pickle of data ({error}); save the checkpoint again."
        ) from error
    raise ModelError(f"{origin}: the pickle ends too early; copy or save the checkpoint again.")


class _Machine:
    """The stack and memo of one pickle."""

    def __init__(self, builders: Builders, persistent: Callable[[Any], Any]) -> None:
        self._builders = builders
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        """Take the top of the stack."""
        return self._stack.pop()

    def step(self, name: str, argument: Any) -> None:
        """Do one opcode: cases 1 to 5 of the module."""
        if name in _IGNORED:
            return
        if name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self._stack.append(argument)
        elif name in _FIXED_TUPLES:
            self._stack.append(self._take(_FIXED_TUPLES[name]))
        elif name in _STEPS:
            _STEPS[name](self, argument)
        else:
            raise ValueError(f"opcode {name} is not data")

    def mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def pop_top(self, _: Any) -> None:
        self._stack.pop()

    def pop_mark(self, _: Any) -> None:
        self._to_mark()

    def duplicate(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def new_list(self, _: Any) -> None:
        self._stack.append([])

    def new_dict(self, _: Any) -> None:
        self._stack.append({})

    def new_set(self, _: Any) -> None:
        self._stack.append(set())

    def list_of_marked(self, _: Any) -> None:
        self._stack.append(self._to_mark())

    def tuple_of_marked(self, _: Any) -> None:
        self._stack.append(tuple(self._to_mark()))

    def frozen_set(self, _: Any) -> None:
        self._stack.append(frozenset(self._to_mark()))

    def dict_of_marked(self, _: Any) -> None:
        items = self._to_mark()
        self._stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def append(self, _: Any) -> None:
        item = self._stack.pop()
        self._container(list).append(item)

    def appends(self, _: Any) -> None:
        items = self._to_mark()
        self._container(list).extend(items)

    def set_item(self, _: Any) -> None:
        key, value = self._take(2)
        self._container(dict)[key] = value

    def set_items(self, _: Any) -> None:
        items = self._to_mark()
        self._container(dict).update(zip(items[::2], items[1::2], strict=True))

    def add_items(self, _: Any) -> None:
        items = self._to_mark()
        self._container(set).update(items)

    def put(self, index: Any) -> None:
        self._memo[int(index)] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, index: Any) -> None:
        self._stack.append(self._memo[int(index)])

    def named(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self._stack.append(Named(module, name))

    def named_from_stack(self, _: Any) -> None:
        module, name = self._take(2)
        self._stack.append(Named(str(module), str(name)))

    def reduce(self, _: Any) -> None:
        function, arguments = self._take(2)
        self._stack.append(self._call(function, arguments))

    def new_object_with_names(self, _: Any) -> None:
        function, arguments, names = self._take(3)
        if names:
            raise ValueError("an object built with named arguments is not data")
        self._stack.append(self._call(function, arguments))

    def drop_state(self, _: Any) -> None:
        self._stack.pop()
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("a state without an object")

    def persistent_id(self, _: Any) -> None:
        self._stack.append(self._persistent(self._stack.pop()))

    def _call(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, Named) or not isinstance(arguments, tuple):
            raise ValueError("a call of something that is not a name")
        builder = self._builders.get(str(function))
        return Call(function, arguments) if builder is None else builder(arguments)

    def _container(self, kind: type) -> Any:
        top = self._stack[-1]
        if type(top) is not kind:
            raise ValueError(f"items for a {type(top).__name__}, not a {kind.__name__}")
        return top

    def _take(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise ValueError("the stack is empty")
        taken = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        if any(item is _MARK for item in taken):
            raise ValueError("a mark where a value is needed")
        return taken

    def _to_mark(self) -> list[Any]:
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]


_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "POP": _Machine.pop_top,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.duplicate,
    "EMPTY_LIST": _Machine.new_list,
    "EMPTY_DICT": _Machine.new_dict,
    "EMPTY_SET": _Machine.new_set,
    "LIST": _Machine.list_of_marked,
    "TUPLE": _Machine.tuple_of_marked,
    "DICT": _Machine.dict_of_marked,
    "FROZENSET": _Machine.frozen_set,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "ADDITEMS": _Machine.add_items,
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.named,
    "STACK_GLOBAL": _Machine.named_from_stack,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.reduce,
    "NEWOBJ_EX": _Machine.new_object_with_names,
    "BUILD": _Machine.drop_state,
    "BINPERSID": _Machine.persistent_id,
}
