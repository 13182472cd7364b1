"""Read the unified Hugging Face export: 8-bit weights with their scales, ``hf_quant_config.json``.

What the export writes for a module (ModelOpt 0.47, ``export_hf_checkpoint``):

| tensor | meaning |
| --- | --- |
| ``weight`` FP8 E4M3, ``weight_scale`` | ``weight * weight_scale``; amax = 448 * weight_scale |
| ``weight`` INT8, ``weight_scale`` ``[O]`` | the same for each row; amax = 127 * weight_scale |
| ``input_scale`` | amax of the input quantizer = qmax * input_scale |
| ``k_proj.k_scale``, ``v_proj.v_scale`` | of ``k_bmm_quantizer`` and ``v_bmm_quantizer`` (KV cache) |

A weight read back is ``stored * scale`` in float32, so that quantizing it again with the same scale
gives the stored bits: the product is within 2^-24 of the stored value, a rounding step is 2^-4.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuseq.errors import ModelError
from fuseq.formats import FP8, INT8, Format
from fuseq.modelopt.checkpoint import UNIFIED_FILE, Checkpoint, StoredQuantizer
from fuseq.modelopt.quant_cfg import Attributes, Entry, Recipe
from fuseq.modelopt.weight_files import read_folder_weights, read_json

_SCALES = ("weight_scale", "input_scale", "k_scale", "v_scale", "output_scale")
_FORMATS: Mapping[str, Format] = {"float8_e4m3fn": FP8, "int8": INT8}


def read_unified(folder: Path) -> Checkpoint:
    """Read a folder of the unified export.

    Raises:
        ModelError: Damaged, a weight without its scale, or a format without Q/DQ here (NVFP4, INT4,
            SmoothQuant's and AWQ's input scales).
    """
    config = read_json(folder / UNIFIED_FILE).get("quantization")
    config = config if isinstance(config, dict) else {}
    tensors = read_folder_weights(folder)
    _refuse_others(folder, config, tensors)
    weights: dict[str, np.ndarray] = {}
    quantizers: dict[str, StoredQuantizer] = {}
    for name, array in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf in _SCALES:
            continue
        weights[name] = array
        if leaf == "weight" and array.dtype.name in _FORMATS:
            fmt = _FORMATS[array.dtype.name]
            scale = _scale(folder, tensors, f"{module}.weight_scale")
            weights[name] = _dequantized(folder, name, array, scale)
            for quantizer in _quantizers(folder, module, fmt, scale, tensors):
                quantizers[quantizer.name] = quantizer
    algorithm = config.get("quant_algo")
    note = (
        f"unified export, quant_algo {algorithm}: {len(quantizers)} quantizers with their scales."
    )
    return Checkpoint(
        "unified export", str(folder), weights, quantizers, Recipe(_excluded(config)), (note,)
    )


def _refuse_others(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> None:
    for name, array in tensors.items():
        leaf = name.rpartition(".")[2]
        if leaf in ("weight_scale_2", "pre_quant_scale") or (
            leaf == "weight" and array.dtype == np.uint8
        ):
            raise ModelError(
                f"{folder}: quant_algo {config.get('quant_algo')!r} stores {name}, which is no FP8 or "
                "INT8 with one scale a tensor or channel; export the model with FP8_DEFAULT_CFG."
            )


def _scale(folder: Path, tensors: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in tensors:
        raise ModelError(f"{folder}: {name} is missing beside an 8-bit weight; export it again.")
    scale = np.asarray(tensors[name]).astype(np.float32)
    if not np.isfinite(scale).all() or not (scale > 0).all():
        raise ModelError(f"{folder}: {name} is not finite and above 0; export the model again.")
    return scale.reshape(()) if scale.size == 1 else scale.reshape(-1)


def _dequantized(folder: Path, name: str, stored: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``stored [O, ...] * scale``, scale ``()`` or ``[O]``, float32."""
    if scale.ndim and scale.size != stored.shape[0]:
        raise ModelError(
            f"{folder}: {name} has {stored.shape[0]} rows and {scale.size} scales; blocks of scales "
            "have no kernel here."
        )
    shaped = scale.reshape(-1, *(1,) * (stored.ndim - 1)) if scale.ndim else scale
    return np.asarray(stored.astype(np.float32) * shaped, np.float32)


def _quantizers(
    folder: Path, module: str, fmt: Format, scale: np.ndarray, tensors: Mapping[str, np.ndarray]
) -> list[StoredQuantizer]:
    bits: object = (4, 3) if fmt.is_float else 8
    found = [_stored(f"{module}.weight_quantizer", bits, scale, fmt)]
    owner = module.rpartition(".")[0]
    for leaf, name in (
        ("input_scale", f"{module}.input_quantizer"),
        ("k_scale", f"{owner}.k_bmm_quantizer"),
        ("v_scale", f"{owner}.v_bmm_quantizer"),
        ("output_scale", f"{module}.output_quantizer"),
    ):
        if f"{module}.{leaf}" in tensors:
            own = _scale(folder, tensors, f"{module}.{leaf}")
            found.append(_stored(name, bits, own, fmt))
    return found


def _stored(name: str, bits: object, scale: np.ndarray, fmt: Format) -> StoredQuantizer:
    amax = scale.astype(np.float64) * fmt.qmax
    return StoredQuantizer(name, True, Attributes(bits, 0 if scale.ndim else None), amax)


def _excluded(config: Mapping[str, Any]) -> tuple[Entry, ...]:
    """``exclude_modules`` as entries that switch off."""
    listed = config.get("exclude_modules") or ()
    return tuple(Entry(f"{glob}", "", None, False) for glob in listed if isinstance(glob, str))
