"""Read .npy, .npz and .safetensors files row by row, without unpickling anything.

Whole files are never in memory: .npy is memory-mapped, .safetensors gives slices, and the members
of an .npz are read as streams, which serves stored and compressed ones alike.
"""

from __future__ import annotations

import dataclasses
import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import ml_dtypes
import numpy as np

from fuseq.errors import CalibrationError

ARRAY_SUFFIXES = (".npy", ".npz", ".safetensors")

_MAX_HEADER_BYTES = 2**20
"""Of an .npy file; NumPy itself refuses more than 10,000 after reading them."""

Read: TypeAlias = Callable[[str, int, int], np.ndarray]
"""``read(name, start, stop)``: rows of axis 0, asked for in rising order; a scalar as it is."""

_SAFETENSORS_TYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype(np.uint8), "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16), "I16": np.dtype(np.int16), "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32), "U64": np.dtype(np.uint64), "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32), "F64": np.dtype(np.float64),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Header:
    """Dtype and shape of one array, known before its values are read."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ArrayFile:
    """A file of arrays.

    Attributes:
        headers: By array name; the one array of an .npy file is called "".
        reading: Opens the file for one pass from the first row to the last.
    """

    headers: Mapping[str, Header]
    reading: Callable[[], AbstractContextManager[Read]]


def open_array_file(file: Path) -> ArrayFile:
    """Open by the file's suffix.

    Raises:
        CalibrationError: Missing, damaged, truncated, or it holds Python objects.
    """
    if not file.is_file():
        raise CalibrationError(f"{file}: no such calibration file; check the path.")
    openers = {".npy": _open_npy, ".npz": _open_npz, ".safetensors": _open_safetensors}
    return openers[file.suffix.lower()](file)


def _open_npy(file: Path) -> ArrayFile:
    with file.open("rb") as stream:
        header, fortran = _read_header(stream, str(file))
        offset = stream.tell()
    need = offset + header.dtype.itemsize * math.prod(header.shape)
    if file.stat().st_size < need:
        raise CalibrationError(
            f"{file}: truncated: its header promises {need} bytes, the file has "
            f"{file.stat().st_size}; write or copy it again."
        )

    @contextmanager
    def reading() -> Iterator[Read]:
        order = "F" if fortran else "C"
        mapped = np.memmap(file, header.dtype, "r", offset, header.shape, order)  # type: ignore[call-overload]
        yield lambda name, start, stop: np.array(mapped[start:stop])

    return ArrayFile({"": header}, reading)


def _open_npz(file: Path) -> ArrayFile:
    headers: dict[str, Header] = {}
    fortran: set[str] = set()
    with _zip(file) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                raise CalibrationError(
                    f"{file}: member {member.filename!r} is not an array; write the file with "
                    "numpy.savez."
                )
            name = member.filename.removesuffix(".npy")
            with _member(archive, member.filename, file) as stream:
                header, is_fortran = _read_header(stream, f"{file}: array {name!r}")
                need = stream.tell() + header.dtype.itemsize * math.prod(header.shape)
            if member.file_size < need:
                raise CalibrationError(
                    f"{file}: array {name!r} is shorter than its header says; write the file again."
                )
            if is_fortran and len(header.shape) > 1:
                fortran.add(name)
            headers[name] = header

    @contextmanager
    def reading() -> Iterator[Read]:
        with ExitStack() as stack:
            archive = stack.enter_context(_zip(file))
            streams: dict[str, IO[bytes]] = {}
            for name in headers:
                streams[name] = stack.enter_context(_member(archive, f"{name}.npy", file))
                _read_header(streams[name], str(file))
            whole = {name: _whole_fortran(streams[name], headers[name], file) for name in fortran}

            def read(name: str, start: int, stop: int) -> np.ndarray:
                if name in whole:
                    return whole[name][start:stop]
                return _rows(streams[name], headers[name], stop - start, file)

            yield read

    return ArrayFile(headers, reading)


def _open_safetensors(file: Path) -> ArrayFile:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    headers: dict[str, Header] = {}
    try:
        with safe_open(file, framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                tensor = opened.get_slice(name)
                dtype = _SAFETENSORS_TYPES.get(tensor.get_dtype())
                if dtype is None:
                    raise CalibrationError(
                        f"{file}: array {name!r} has type {tensor.get_dtype()}; save it as one of "
                        f"{', '.join(_SAFETENSORS_TYPES)}."
                    )
                headers[name] = Header(dtype, tuple(tensor.get_shape()))
    except (SafetensorError, OSError) as error:
        raise CalibrationError(
            f"{file}: not a safetensors file ({error}); a pickle or another format is refused, "
            "because it can execute code. Write it with safetensors.numpy.save_file."
        ) from error

    @contextmanager
    def reading() -> Iterator[Read]:
        with safe_open(file, framework="numpy") as opened:

            def read(name: str, start: int, stop: int) -> np.ndarray:
                if not headers[name].shape:
                    return np.asarray(opened.get_tensor(name))
                return np.asarray(opened.get_slice(name)[start:stop])

            yield read

    return ArrayFile(headers, reading)


def _read_header(stream: IO[bytes], what: str) -> tuple[Header, bool]:
    """Read an .npy header; the second result says that the array is in Fortran order."""
    readers = {
        (1, 0): (np.lib.format.read_array_header_1_0, 2),
        (2, 0): (np.lib.format.read_array_header_2_0, 4),
    }
    try:
        version = np.lib.format.read_magic(stream)
        if version not in readers:
            raise ValueError(f"format version {version}")
        reader, size_bytes = readers[version]
        size = stream.read(size_bytes)
        length = int.from_bytes(size, "little")
        if length > _MAX_HEADER_BYTES:  # NumPy would make room for it first
            raise ValueError(f"a header of {length} bytes")
        shape, fortran, dtype = reader(io.BytesIO(size + stream.read(length)))
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CalibrationError(
            f"{what}: not a NumPy array file ({error}); write it with numpy.save or numpy.savez."
        ) from error
    if not all(type(size) is int and size >= 0 for size in shape):
        raise CalibrationError(f"{what}: its header says the shape {shape}; write it again.")
    if dtype.hasobject:
        raise CalibrationError(
            f"{what}: holds Python objects (a pickle), which can execute code when they are read; "
            "save plain number arrays."
        )
    return Header(dtype, tuple(shape)), bool(fortran)


def _zip(file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError) as error:
        raise CalibrationError(
            f"{file}: not an .npz file ({error}); it may be truncated. Write it again with "
            "numpy.savez."
        ) from error


def _member(archive: zipfile.ZipFile, name: str, file: Path) -> IO[bytes]:
    try:
        return archive.open(name)
    except (
        zipfile.BadZipFile,
        RuntimeError,
        NotImplementedError,
        KeyError,
        OSError,
        ValueError,
    ) as error:
        raise CalibrationError(
            f"{file}: member {name!r} cannot be read ({error}); write it again with numpy.savez."
        ) from error


def _rows(stream: IO[bytes], header: Header, rows: int, file: Path) -> np.ndarray:
    """The next ``rows`` rows of a C-ordered member; a scalar as it is."""
    shape = (rows, *header.shape[1:]) if header.shape else ()
    need = header.dtype.itemsize * math.prod(shape)
    try:
        data = stream.read(need)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CalibrationError(f"{file}: damaged ({error}); write or copy it again.") from error
    if len(data) < need:
        raise CalibrationError(f"{file}: truncated; write or copy it again.")
    return np.frombuffer(data, dtype=header.dtype).reshape(shape)


def _whole_fortran(stream: IO[bytes], header: Header, file: Path) -> np.ndarray:
    """All of a Fortran-ordered member: its rows are scattered, so it cannot be streamed."""
    turned = Header(header.dtype, header.shape[::-1])
    return np.asarray(_rows(stream, turned, turned.shape[0], file).T)
