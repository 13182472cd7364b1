"""Read the weights of a Hugging Face folder: safetensors, whole or sharded, or a torch.save file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fuseq.errors import ModelError
from fuseq.modelopt.torch_file import read_torch_file

_NAMES = ("model", "diffusion_pytorch_model")
_MAX_JSON_BYTES = 64 * 2**20


def read_folder_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return every tensor of the folder's weights by name.

    Raises:
        ModelError: There are none, a shard is missing or outside the folder, or a file is damaged.
    """
    arrays: dict[str, np.ndarray] = {}
    for file in _files(folder):
        arrays.update(read_safetensors(file) if file.suffix == ".safetensors" else _torch(file))
    return arrays


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: Missing, too large, or not a JSON object.
    """
    if not file.is_file() or file.stat().st_size > _MAX_JSON_BYTES:
        raise ModelError(f"{file}: missing or larger than {_MAX_JSON_BYTES} bytes.")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not JSON ({error}); copy the folder again.") from error
    if not isinstance(data, dict):
        raise ModelError(f"{file}: holds a {type(data).__name__}, not an object.")
    return data


def read_safetensors(file: Path) -> dict[str, np.ndarray]:
    """Read a safetensors file; FP8 and bfloat16 become the types of ml_dtypes.

    Raises:
        ModelError: Missing or damaged, or a type that is not read here.
    """
    from safetensors import SafetensorError, deserialize  # noqa: PLC0415

    try:
        entries = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: not a readable safetensors file ({error}).") from error
    return {name: _array(file, name, entry) for name, entry in entries}


def _array(file: Path, name: str, entry: dict[str, Any]) -> np.ndarray:
    import ml_dtypes  # noqa: PLC0415

    dtypes: dict[str, Any] = {
        "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn, "I64": np.int64, "I32": np.int32, "I16": np.int16,
        "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
    }  # fmt: skip
    if entry["dtype"] not in dtypes:
        raise ModelError(f"{file}: {name} has the type {entry['dtype']}, which is not read here.")
    flat = np.frombuffer(entry["data"], dtypes[entry["dtype"]])
    return np.asarray(flat.reshape(entry["shape"]))


def _files(folder: Path) -> list[Path]:
    for name in _NAMES:
        index = folder / f"{name}.safetensors.index.json"
        if index.is_file():
            return _shards(folder, index)
        if (folder / f"{name}.safetensors").is_file():
            return [folder / f"{name}.safetensors"]
    if (folder / "pytorch_model.bin").is_file():
        return [folder / "pytorch_model.bin"]
    raise ModelError(f"{folder}: no model.safetensors or pytorch_model.bin in it.")


def _shards(folder: Path, index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index}: has no weight_map; copy the folder again.")
    shards = [folder / str(name) for name in dict.fromkeys(weight_map.values())]
    for shard in shards:
        if shard.parent != folder or not shard.is_file():
            raise ModelError(f"{index}: names {shard.name}, which is not in the folder.")
    return shards


def _torch(file: Path) -> dict[str, np.ndarray]:
    saved = read_torch_file(file)
    if not isinstance(saved, dict):
        raise ModelError(f"{file}: holds a {type(saved).__name__}, not a state dict.")
    return {str(name): array for name, array in saved.items() if isinstance(array, np.ndarray)}
