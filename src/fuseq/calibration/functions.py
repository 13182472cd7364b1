"""Calibration sources from Python: ``module:function`` and objects that hold or make batches."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuseq.calibration.batches import Batch, Source
from fuseq.calibration.cut import Cut, cut_for, padding_note, pieces
from fuseq.calibration.fit import as_array, check_names, fit
from fuseq.errors import CalibrationError, FuseqError
from fuseq.model import InputSpec


def function_named(text: str, option: str = "--calib") -> Callable[..., Any]:
    """Import ``module:function`` from the current folder or the Python path.

    Args:
        text: What the user wrote.
        option: The option that it was given to.

    Raises:
        CalibrationError: No such module or function, or its import fails.
    """
    module_name, _, function_name = text.partition(":")
    folder = os.getcwd()
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's own code runs here
        raise CalibrationError(
            f"{option} {text}: module {module_name!r} cannot be imported ({_told(error)}); run in its "
            "folder, install what it needs, or mend it."
        ) from error
    finally:
        if added:
            sys.path.remove(folder)
    function = getattr(module, function_name, None)
    if not callable(function):
        found = "is not a function" if hasattr(module, function_name) else "has no such name"
        raise CalibrationError(
            f"{option} {text}: {module_name} {found}; write a function {function_name}"
            + ("() that yields dicts of input name and array." if option == "--calib" else ".")
        )
    return function  # type: ignore[no-any-return]


def object_source(
    given: Any, specs: Sequence[InputSpec], limit: int | None, description: str
) -> Source:
    """Open a function or an iterable whose items are batches.

    An item is a mapping of input name to array, or, for a model of one input, the array. A
    generator can be read again only if its batches were few enough to be kept.

    Raises:
        CalibrationError: It is neither a function nor iterable. Reading raises it for a batch that
            does not fit.
    """
    if not callable(given) and not isinstance(given, Iterable):
        raise CalibrationError(
            f"calibration data of type {type(given).__name__} cannot be read; give a path, a "
            "function or an iterable of dicts."
        )
    batches = _passes(given, description)
    source = Source(description, lambda: iter(()), keep=True)
    source.make = lambda: _fitted(_asked(batches, description), specs, limit, source)
    return source


def _asked(batches: Callable[[], Iterable[Any]], description: str) -> Iterator[Any]:
    """Run the user's own code; what it raises is told in one sentence."""
    try:
        yield from batches()
    except FuseqError:
        raise
    except (Exception, SystemExit) as error:
        raise CalibrationError(
            f"{description}: raised {_told(error)}; it must take no argument and yield dicts of input "
            "name and array."
        ) from error


def _told(error: BaseException) -> str:
    """Type, first line and place of an error of the user's code."""
    lines = str(error).strip().splitlines() or ["no message"]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {lines[0][:200]}, {Path(place.filename).name}:{place.lineno}"


def _passes(given: Any, description: str) -> Callable[[], Iterable[Any]]:
    if callable(given) and not isinstance(given, Iterable):
        return given  # type: ignore[no-any-return]
    used = False

    def again() -> Iterable[Any]:
        nonlocal used
        if used and isinstance(given, Iterator):
            raise CalibrationError(
                f"{description}: a generator gives its batches only once, and they are needed "
                "again; pass the function that makes it, or a list."
            )
        used = True
        return given  # type: ignore[no-any-return]

    return again


def _fitted(
    items: Iterable[Any], specs: Sequence[InputSpec], limit: int | None, source: Source
) -> Iterator[Batch]:
    samples = 0
    for number, item in enumerate(items):
        where = f"batch {number + 1} of {source.description}"
        arrays = _named_arrays(item, specs, where)
        cut = _cut(arrays, specs, where)
        if cut.is_padded:
            source.note(padding_note(source.description))
        scalars = {name: array for name, array in arrays.items() if array.ndim == 0}
        for piece in pieces(cut, lambda name, start, stop, a=arrays: a[name][start:stop]):  # type: ignore[misc]
            yield fit({**piece, **scalars}, specs, where, source.note)
        samples += next(iter(cut.total.values()), 1)
        if limit is not None and samples >= limit:
            return


def _cut(arrays: Batch, specs: Sequence[InputSpec], where: str) -> Cut:
    """Batches of the user's own size stay whole, unless the model's batch is fixed."""
    rows = {name: array.shape[0] for name, array in arrays.items() if array.ndim}
    if (
        not any(spec.shape and isinstance(spec.shape[0], int) for spec in specs)
        or 0 in rows.values()
    ):
        return Cut(1, rows, rows)
    return cut_for({name: array.shape for name, array in arrays.items()}, specs, where)


def _named_arrays(item: Any, specs: Sequence[InputSpec], where: str) -> Batch:
    """Copies, because a user may fill the same buffer again while another thread still reads it."""
    if not isinstance(item, Mapping):
        if len(specs) != 1:
            raise CalibrationError(
                f"{where}: found {type(item).__name__}, and the model has "
                f"{len(specs)} inputs; yield a dict of input name and array."
            )
        item = {specs[0].name: item}
    check_names(item, specs, where)
    return {
        spec.name: np.array(as_array(item[spec.name], f"input {spec.name!r} of {where}"))
        for spec in specs
    }
