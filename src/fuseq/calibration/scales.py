"""Scales by group of tensors, and the file that keeps them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuseq.calibration.formulas import SMALLEST_SCALE, activation_scale, weight_scales
from fuseq.errors import CalibrationError, OptionError
from fuseq.formats import format_named
from fuseq.model import whole_file

SCALES_VERSION = 1
_METADATA_KEY = "fuseq_scales"
_BIAS_FORMAT = "int32"
"""A plan stores the biases of integer kernels as INT32; no other format than those of formats.py."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """The scale of one group of tensors.

    Attributes:
        scale: float32, shape ``()`` per tensor or ``(channels,)``; finite, above 0.
        zero_point: int32, same shape; None for 0 everywhere.
        format: Name of the number format, ``int32`` for a bias.
        axis: Channel axis, None per tensor.
    """

    scale: np.ndarray
    zero_point: np.ndarray | None
    format: str
    axis: int | None = None


@dataclasses.dataclass(frozen=True)
class Scales(Mapping[str, Scale]):
    """Scales by group name. Kept in a safetensors file, which cannot execute anything."""

    by_group: Mapping[str, Scale]

    def __getitem__(self, group: str) -> Scale:
        return self.by_group[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_group)

    def __len__(self) -> int:
        return len(self.by_group)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all.

        Raises:
            ModelError: The place cannot be written.
        """
        from safetensors.numpy import save  # noqa: PLC0415

        arrays: dict[str, np.ndarray] = {}
        entries: list[dict[str, Any]] = []
        for number, (group, scale) in enumerate(self.by_group.items()):
            arrays[f"{number}.scale"] = np.array(scale.scale, dtype=np.float32, order="C")
            if scale.zero_point is not None:
                zero_point = np.array(scale.zero_point, dtype=np.int32, order="C")
                arrays[f"{number}.zero_point"] = zero_point
            entries.append({"group": group, "format": scale.format, "axis": scale.axis})
        text = json.dumps({"version": SCALES_VERSION, "groups": entries})
        with whole_file(Path(path)) as beside:
            beside.write_bytes(save(arrays, metadata={_METADATA_KEY: text}))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Scales:
        """Read and validate a file of :meth:`save`.

        Raises:
            CalibrationError: Missing, not safetensors (a pickle, for example), of another version,
                or a scale is absent, not float32, not finite, not above 0, or of a wrong shape.
        """
        file = Path(path)
        arrays, text = _read_safetensors(file)
        entries = _entries(file, text)
        found: dict[str, Scale] = {}
        for number, entry in enumerate(entries):
            found[entry["group"]] = _checked(
                file, entry, arrays.get(f"{number}.scale"), arrays.get(f"{number}.zero_point")
            )
        return Scales(found)


def _read_safetensors(file: Path) -> tuple[dict[str, np.ndarray], str]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    if not file.is_file():
        raise CalibrationError(f"{file}: no such scale file; run the calibration that writes it.")
    try:
        with safe_open(file, framework="numpy") as opened:
            text = (opened.metadata() or {}).get(_METADATA_KEY)
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError, OSError) as error:
        raise CalibrationError(
            f"{file}: not a safetensors file ({error}); a pickle or another format is refused, "
            "because it can execute code. Give a file that fuseq wrote."
        ) from error
    if text is None:
        raise CalibrationError(
            f"{file}: a safetensors file without fuseq's scales; give a file that fuseq wrote."
        )
    return arrays, text


def _entries(file: Path, text: str) -> list[dict[str, Any]]:
    damaged = f"{file}: damaged scale file"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{damaged} ({error}); calibrate again.") from error
    if not isinstance(data, dict) or data.get("version") != SCALES_VERSION:
        raise CalibrationError(
            f"{file}: not scales of version {SCALES_VERSION}; calibrate again with this fuseq."
        )
    entries = data.get("groups")
    if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
        raise CalibrationError(f"{damaged} (its list of groups); calibrate again.")
    return entries


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("group"), str)
        and isinstance(entry.get("format"), str)
        and "axis" in entry
        and (entry["axis"] is None or type(entry["axis"]) is int)
    )


def _checked(
    file: Path, entry: dict[str, Any], scale: np.ndarray | None, zero_point: np.ndarray | None
) -> Scale:
    where = f"{file}: scale of group {entry['group']!r}"
    if scale is None or scale.dtype != np.float32:
        raise CalibrationError(f"{where} is missing or not float32; calibrate again.")
    if scale.ndim != (0 if entry["axis"] is None else 1):
        raise CalibrationError(
            f"{where} has shape {list(scale.shape)}, but axis {entry['axis']}; calibrate again."
        )
    if not np.isfinite(scale).all() or not (scale > 0).all():
        raise CalibrationError(f"{where} is not finite and above 0; calibrate again.")
    if entry["format"] == _BIAS_FORMAT:
        return Scale(scale, None, _BIAS_FORMAT, entry["axis"])
    try:
        fmt = format_named(entry["format"])
    except OptionError as error:
        raise CalibrationError(f"{where} has an unknown format: {error}") from error
    if zero_point is not None:
        fits = zero_point.dtype == np.int32 and zero_point.shape == scale.shape
        if not fits or (zero_point < fmt.qmin).any() or (zero_point > fmt.qmax).any():
            raise CalibrationError(
                f"{where} has a zero point of another type, shape or range; calibrate again."
            )
    return Scale(scale, zero_point, entry["format"], entry["axis"])


__all__ = ["SMALLEST_SCALE", "Scale", "Scales", "activation_scale", "weight_scales"]
