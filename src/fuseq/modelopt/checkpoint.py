"""Read a ModelOpt checkpoint: float weights, and what each of its quantizers does.

Three kinds, told apart by what lies at the path:

1. A file of ``mto.save``: ``model_state_dict`` and ``modelopt_state`` in one file of ``torch.save``.
2. A Hugging Face folder of ``save_pretrained`` with ModelOpt's checkpointing on: the weights, with
   ``<module>.<quantizer>._amax`` among them, and ``modelopt_state.pth``.
3. A folder of the unified export (``hf_quant_config.json``): :mod:`fuseq.modelopt.unified`.

No code of a file runs: :mod:`fuseq.modelopt.torch_file` and safetensors read data only.
"""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuseq.errors import ModelError
from fuseq.modelopt.quant_cfg import EVERYTHING, Attributes, Recipe, read_recipe
from fuseq.modelopt.torch_file import read_torch_file
from fuseq.modelopt.weight_files import read_folder_weights

STATE_FILE = "modelopt_state.pth"
UNIFIED_FILE = "hf_quant_config.json"
_QUANTIZATION_MODES = frozenset(
    {
        "quantize", "max_calibrate", "mse_calibrate", "local_hessian_calibrate", "smoothquant",
        "awq_lite", "awq_clip", "awq_full", "auto_quantize", "export_quantize",
    }
)  # fmt: skip
"""Modes of ModelOpt that leave the architecture as it is; what they did to the weights and ranges is
in the tensors."""


@dataclasses.dataclass(frozen=True)
class StoredQuantizer:
    """One quantizer of a checkpoint.

    Attributes:
        name: Its path: ``encoder.layers.0.fc1.weight_quantizer``.
        enabled: It quantizes.
        attributes: How.
        amax: Largest magnitude, float64, shape ``()`` or ``(channels,)``; None where not stored.
        problem: Why fuseq cannot do what it does, "" when it can.
    """

    name: str
    enabled: bool
    attributes: Attributes
    amax: np.ndarray | None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's contents.

    Attributes:
        kind: ``mto.save file``, ``Hugging Face folder`` or ``unified export``.
        origin: Its path, for messages.
        weights: Arrays by the name in the file; what was stored in 8 bits is float32 here.
        quantizers: By path.
        recipe: The quant_cfg that made it; empty where the file has none.
        notes: What the user should know.
    """

    kind: str
    origin: str
    weights: Mapping[str, np.ndarray]
    quantizers: Mapping[str, StoredQuantizer]
    recipe: Recipe
    notes: tuple[str, ...] = ()


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` looks like a ModelOpt checkpoint: a folder with its file, or a zip of torch.save.

    Only looks; :func:`read_checkpoint` says what is wrong with one that cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        return (place / UNIFIED_FILE).is_file() or (place / STATE_FILE).is_file()
    return place.suffix in (".pth", ".pt", ".bin") and zipfile.is_zipfile(place)


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read any of the three kinds.

    Raises:
        ModelError: None of them, damaged, or stored in a format that has no Q/DQ here.
    """
    place = Path(path)
    if place.is_dir():
        if (place / UNIFIED_FILE).is_file():
            from fuseq.modelopt.unified import read_unified  # noqa: PLC0415 (imports this)

            return read_unified(place)
        if (place / STATE_FILE).is_file():
            state = read_torch_file(place / STATE_FILE)
            return _checkpoint("Hugging Face folder", place, state, read_folder_weights(place))
        raise ModelError(
            f"{place}: neither {STATE_FILE} nor {UNIFIED_FILE} in it; give a folder that ModelOpt's "
            "save_pretrained or export_hf_checkpoint wrote, or a file of mto.save."
        )
    saved = read_torch_file(place)
    if not isinstance(saved, dict) or not {"modelopt_state", "model_state_dict"} <= set(saved):
        keys = sorted(map(str, saved))[:4] if isinstance(saved, dict) else type(saved).__name__
        raise ModelError(
            f"{place}: not a file of mto.save: it holds {keys}, not modelopt_state and "
            "model_state_dict."
        )
    weights = _arrays(saved["model_state_dict"], str(place))
    return _checkpoint("mto.save file", place, saved["modelopt_state"], weights)


def _arrays(state: Any, origin: str) -> dict[str, np.ndarray]:
    if not isinstance(state, dict):
        raise ModelError(f"{origin}: model_state_dict is a {type(state).__name__}, not a dict.")
    return {str(name): array for name, array in state.items() if isinstance(array, np.ndarray)}


def _checkpoint(
    kind: str, place: Path, state: Any, tensors: Mapping[str, np.ndarray]
) -> Checkpoint:
    modes = _modes(state, str(place))
    states: dict[str, Any] = {}
    recipe = Recipe(())
    for name, saved in modes:
        if name not in _QUANTIZATION_MODES:
            raise ModelError(
                f"{place}: made with ModelOpt's mode {name!r}, which changes the model in a way that "
                f"is not read here; read are {', '.join(sorted(_QUANTIZATION_MODES))}."
            )
        states.update(_mapping(_mapping(saved).get("metadata")).get("quantizer_state") or {})
        config = _mapping(_mapping(saved).get("config"))
        if "quant_cfg" in config:
            recipe = read_recipe(config["quant_cfg"])
    quantizers = {name: _quantizer(name, _mapping(item), tensors) for name, item in states.items()}
    owned = tuple(f"{name}." for name in states)
    weights = {
        name: array for name, array in tensors.items() if not name.startswith(owned) or not owned
    }
    _refuse_packed(place, weights, quantizers)
    return Checkpoint(kind, str(place), weights, quantizers, recipe)


def _modes(state: Any, origin: str) -> list[tuple[str, Any]]:
    """The (mode, what it saved) pairs of a modelopt_state."""
    listed = _mapping(state).get("modelopt_state_dict")
    if not isinstance(listed, list) or not all(
        isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], str)
        for item in listed
    ):
        raise ModelError(f"{origin}: no list of ModelOpt's modes in it; save the checkpoint again.")
    return [(name, saved) for name, saved in listed]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _quantizer(
    name: str, state: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> StoredQuantizer:
    if state.get("is_sequential_quantizer"):
        problem = "several quantizers in sequence have no equivalent in an engine's Q/DQ"
        return StoredQuantizer(name, True, Attributes(0), None, problem)
    fields = ("num_bits", "axis", "unsigned", "block_sizes", "bias", "rotate")
    recipe = read_recipe([{EVERYTHING: {key: state.get(f"_{key}") for key in fields}}])
    attributes = recipe.entries[0].attributes or Attributes()
    enabled = not state.get("_disabled", False) and bool(state.get("_if_quant", True))
    amax = tensors.get(f"{name}._amax")
    problem = attributes.problem
    if state.get("_dynamic"):
        problem = "its ranges are found at run time, which no Q/DQ pair does"
    scale = tensors.get(f"{name}._pre_quant_scale")
    if scale is not None and not np.all(scale == 1):
        problem = "its input is multiplied by a smoothing scale (SmoothQuant, AWQ), fold it first"
    stored = None if amax is None else _squeezed(amax)
    return StoredQuantizer(name, enabled, attributes, stored, problem if enabled else "")


def _squeezed(amax: np.ndarray) -> np.ndarray:
    """ModelOpt keeps the reduced dimensions of a channel range (``[O, 1, 1, 1]``)."""
    flat = np.asarray(amax).astype(np.float64)
    return flat.reshape(()) if flat.size == 1 else flat.reshape(-1)


def _refuse_packed(
    place: Path, weights: Mapping[str, np.ndarray], quantizers: Mapping[str, StoredQuantizer]
) -> None:
    """Weights that ``mtq.compress`` packed are not floats that could be loaded."""
    for name, array in weights.items():
        owner, _, leaf = name.rpartition(".")
        is_quantized = leaf == "weight" and f"{owner}.weight_quantizer" in quantizers
        if is_quantized and not _is_float(array.dtype):
            raise ModelError(
                f"{place}: {name} is stored as {array.dtype} by mtq.compress; save the model "
                "before compressing it, or give the unified export."
            )


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.name in ("float64", "float32", "float16", "bfloat16")
