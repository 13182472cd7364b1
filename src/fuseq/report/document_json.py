"""Write a document as JSON and read it back, every field checked: the file may come from a stranger."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import types
import typing
from pathlib import Path
from typing import Any

from fuseq.errors import ModelError
from fuseq.model import whole_file
from fuseq.report.document import SCHEMA, VERSION, Document

_MAX_BYTES = 512 * 2**20


def to_json(document: Document) -> str:
    """JSON text, keys in the order of the fields.

    Raises:
        ValueError: A number is NaN or infinite, which JSON does not have.
    """
    return json.dumps(dataclasses.asdict(document), allow_nan=False, ensure_ascii=False)


def from_json(text: str, origin: str = "document") -> Document:
    """Read what :func:`to_json` wrote.

    Raises:
        ModelError: Not JSON, another version, or a field is missing, unknown or of a wrong type.
    """
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{origin}: not JSON ({error}); give the JSON of a fuseq command."
        ) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ModelError(f"{origin}: not a fuseq document; give the report.json of `fuseq deploy`.")
    if data.get("version") != VERSION:
        raise ModelError(
            f"{origin}: document version {data.get('version')!r}, this fuseq reads {VERSION}; "
            "make it again."
        )
    document: Document = read(Document, data, origin)
    return document


def save(document: Document, path: str | os.PathLike[str]) -> None:
    """Write the JSON whole or not at all.

    Raises:
        ModelError: The place cannot be written.
    """
    text = to_json(document)
    with whole_file(Path(path)) as beside:
        beside.write_text(text + "\n", encoding="utf-8")


def load(path: str | os.PathLike[str]) -> Document:
    """Read a file of :func:`save`.

    Raises:
        ModelError: Missing, too large, not text, or damaged.
    """
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"{file}: no such document; give the report.json of `fuseq deploy`.")
    if file.stat().st_size > _MAX_BYTES:
        raise ModelError(
            f"{file}: {file.stat().st_size} bytes; a document has {_MAX_BYTES} at most."
        )
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{file}: not text; give the report.json of `fuseq deploy`.") from error
    return from_json(text, str(file))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def read(kind: Any, data: Any, where: str) -> Any:
    """Plain JSON data as the type ``kind``: dataclasses, tuples, unions with None, literals, plain types.

    Raises:
        ModelError: A field is missing, unknown or of a wrong type; ``where`` names it.
    """
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, data, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _read_tuple(arguments, data, where)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, data, where)
    if origin is typing.Literal:
        if data not in arguments or isinstance(data, bool):
            raise _wrong(where, data, f"one of {', '.join(map(str, arguments))}")
        return data
    if kind is float and type(data) in (int, float) and abs(data) <= sys.float_info.max:
        return float(data)
    if type(data) is not kind:
        raise _wrong(where, data, kind.__name__)
    return data


def _read_fields(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where, data, f"an object ({kind.__name__})")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise ModelError(f"{where}: unknown field {unknown[0]!r}; make the document again.")
    values = {name: read(hints[name], data[name], f"{where}.{name}") for name in data}
    for name, field in fields.items():
        if name not in data and field.default is dataclasses.MISSING:
            raise ModelError(f"{where}: field {name!r} is missing; make the document again.")
    return kind(**values)


def _read_tuple(arguments: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _wrong(where, data, "a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(data) != len(arguments):
        raise _wrong(where, data, f"a list of {len(arguments)}")
    pairs = zip(arguments, data, strict=True)
    return tuple(read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


def _read_union(arguments: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in arguments:
        return None
    kinds = [kind for kind in arguments if kind is not type(None)]
    exact = [kind for kind in kinds if type(data) is kind]
    return read((exact or kinds)[0], data, where)


def _wrong(where: str, data: Any, wanted: str) -> ModelError:
    return ModelError(
        f"{where}: {str(data)[:60]!r} is not {wanted}; the document is damaged, make it again."
    )
