"""Read a file of ``torch.save`` into plain data and NumPy arrays, without torch and without pickle.

The format (torch/serialization.py, "zip file format"): an uncompressed zip with ``<name>/data.pkl``,
``<name>/byteorder`` and one member ``<name>/data/<key>`` a storage. In the pickle a tensor is a call
of ``torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...)``, ``_v3`` with a dtype for
storages without one, and a storage is a persistent id ``("storage", type, key, device, elements)``.
"""

from __future__ import annotations

import dataclasses
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from fuseq.errors import ModelError
from fuseq.modelopt.pickle_data import Named, read_pickle

_MAX_PICKLE_BYTES = 256 * 2**20
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
_STORAGES: Mapping[str, str] = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
}


@dataclasses.dataclass(frozen=True)
class _Storage:
    """Bytes of one storage; ``dtype`` None where only the tensor says the type."""

    data: bytes
    dtype: np.dtype[Any] | None


def read_torch_file(path: str | os.PathLike[str]) -> Any:
    """Return what was saved: dicts, lists, numbers, text, and an array for each tensor.

    Objects of any class stay records (:class:`fuseq.modelopt.pickle_data.Call`); no code of the file
    or of a class that it names runs. Tensors share memory where they shared a storage.

    Raises:
        ModelError: Not such a file, of the format before torch 1.6, compressed, big-endian, damaged,
            or a tensor reaches outside its storage.
    """
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"{file}: no such file; give a file that torch.save wrote.")
    try:
        with zipfile.ZipFile(file) as archive:
            return _Reader(archive, str(file)).read()
    except zipfile.BadZipFile as error:
        raise ModelError(
            f"{file}: not a zip file as torch.save writes since 1.6, or truncated ({error}); save "
            "it again with a current torch."
        ) from error


class _Reader:
    """One open archive."""

    def __init__(self, archive: zipfile.ZipFile, origin: str) -> None:
        self._archive = archive
        self._origin = origin
        self._storages: dict[str, _Storage] = {}
        pickles = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
        if len(pickles) != 1:
            raise ModelError(
                f"{origin}: a zip file, but not one of torch.save; it has no data.pkl."
            )
        self._folder = pickles[0].partition("/")[0]

    def read(self) -> Any:
        order = self._member("byteorder") if self._has("byteorder") else b"little"
        if order != b"little":
            raise ModelError(f"{self._origin}: stored big-endian; save it on a usual machine.")
        builders = {
            "collections.OrderedDict": _empty_dict,
            "torch.Size": lambda arguments: tuple(arguments[0]) if arguments else (),
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._typed_tensor,
            "torch._utils._rebuild_parameter": lambda arguments: arguments[0],
        }
        return read_pickle(
            self._member("data.pkl", _MAX_PICKLE_BYTES), self._origin, builders, self._storage
        )

    def _has(self, name: str) -> bool:
        return f"{self._folder}/{name}" in self._archive.namelist()

    def _member(self, name: str, limit: int | None = None) -> bytes:
        try:
            info = self._archive.getinfo(f"{self._folder}/{name}")
        except KeyError:
            raise ModelError(f"{self._origin}: {name} is missing in it; copy it again.") from None
        if info.compress_type != zipfile.ZIP_STORED:
            raise ModelError(f"{self._origin}: {name} is compressed, which torch.save never does.")
        if limit is not None and info.file_size > limit:
            raise ModelError(f"{self._origin}: {name} has {info.file_size} bytes, too many.")
        return self._archive.read(info)

    def _storage(self, persistent_id: Any) -> _Storage:
        kind, storage_type, key, _, elements = persistent_id
        known = isinstance(storage_type, Named) and storage_type.name in _STORAGES
        if kind != "storage" or not known or not isinstance(key, str):
            raise ModelError(f"{self._origin}: a storage of unknown type {storage_type}.")
        if key not in self._storages:
            untyped = storage_type.name == "UntypedStorage"
            dtype = _DTYPES[_STORAGES[storage_type.name]]
            data = self._member(f"data/{key}")
            if len(data) != elements * dtype.itemsize:
                raise ModelError(
                    f"{self._origin}: storage {key} has {len(data)} bytes, its header says "
                    f"{elements} elements of {dtype}; copy it again."
                )
            self._storages[key] = _Storage(data, None if untyped else dtype)
        return self._storages[key]

    def _tensor(self, arguments: tuple[Any, ...]) -> np.ndarray:
        storage, offset, size, stride = arguments[:4]
        return self._view(storage, storage.dtype, offset, size, stride)

    def _typed_tensor(self, arguments: tuple[Any, ...]) -> np.ndarray:
        storage, offset, size, stride, _, _, dtype = arguments[:7]
        if not isinstance(dtype, Named) or dtype.name not in _DTYPES:
            raise ModelError(f"{self._origin}: a tensor of type {dtype}, which is not read here.")
        return self._view(storage, _DTYPES[dtype.name], offset, size, stride)

    def _view(
        self, storage: _Storage, dtype: np.dtype[Any] | None, offset: Any, size: Any, stride: Any
    ) -> np.ndarray:
        """A read-only view of a storage; it may not reach outside or be larger than what is stored."""
        if dtype is None:
            raise ModelError(f"{self._origin}: a tensor without a type.")
        # strided as integers of the same width: as_strided does not know every type of ml_dtypes
        flat = np.frombuffer(storage.data, np.dtype(f"u{dtype.itemsize}"))
        size, stride = tuple(map(int, size)), tuple(map(int, stride))
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        fits = offset >= 0 and min((*size, *stride), default=0) >= 0 and last < flat.size
        if math.prod(size) and not (fits and math.prod(size) <= flat.size):
            raise ModelError(f"{self._origin}: a tensor of shape {list(size)} leaves its storage.")
        if not math.prod(size):
            return np.zeros(size, dtype)
        steps = tuple(step * dtype.itemsize for step in stride)
        view = np.lib.stride_tricks.as_strided(flat[offset:], size, steps, writeable=False)
        return view.view(dtype)


def _empty_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    return dict(*arguments[:1])
