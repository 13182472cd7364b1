from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fuseq.calibration.scales import Scale, Scales
from fuseq.errors import CalibrationError, ModelError


def some_scales() -> Scales:
    return Scales(
        {
            "conv/1": Scale(np.float32(0.25).reshape(()), None, "int8"),
            "weird name: ü \n": Scale(
                np.array([0.5, 1e-3], np.float32), np.array([3, 255], np.int32), "uint8", 1
            ),
            "w": Scale(np.array([1.0, 2.0, 3.0], np.float32), None, "fp8", 0),
            "b": Scale(np.array([1.0], np.float32), None, "int32", 0),
        }
    )


def test_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "scales.safetensors"
    some_scales().save(file)
    loaded = Scales.load(file)
    assert list(loaded) == list(some_scales())
    for group, scale in some_scales().items():
        found = loaded[group]
        np.testing.assert_array_equal(found.scale, scale.scale)
        assert found.scale.shape == scale.scale.shape and found.scale.dtype == np.float32
        assert (found.format, found.axis) == (scale.format, scale.axis)
        if scale.zero_point is None:
            assert found.zero_point is None
        else:
            assert found.zero_point is not None
            np.testing.assert_array_equal(found.zero_point, scale.zero_point)


def test_same_scales_same_bytes(tmp_path: Path) -> None:
    some_scales().save(tmp_path / "a")
    some_scales().save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "scales.safetensors"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "ran"),))  # type: ignore[return-value]

    file.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CalibrationError, match="not a safetensors file .* pickle .* refused"):
        Scales.load(file)
    assert not (tmp_path / "ran").exists()


def test_missing_file_and_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no such scale file"):
        Scales.load(tmp_path / "none.safetensors")
    with pytest.raises(ModelError, match="cannot be written"):
        some_scales().save(tmp_path / "no folder" / "scales.safetensors")
    assert list(tmp_path.iterdir()) == []


def group(**changes: object) -> dict[str, object]:
    return {"group": "g", "format": "int8", "axis": None, **changes}


@pytest.mark.parametrize(
    ("scale", "zero_point", "entry", "message"),
    [
        (np.float32(0.0), None, group(), "'g' is not finite and above 0"),
        (np.float32(-1.0), None, group(), "'g' is not finite and above 0"),
        (np.float32(np.nan), None, group(), "'g' is not finite and above 0"),
        (np.float32(np.inf), None, group(), "'g' is not finite and above 0"),
        (np.float64(1.0), None, group(), "missing or not float32"),
        (np.ones(2, np.float32), None, group(), r"shape \[2\], but axis None"),
        (np.float32(1.0), None, group(axis=0), r"shape \[\], but axis 0"),
        (np.float32(1.0), None, group(format="int3"), "unknown format"),
        (np.float32(1.0), np.int32(300), group(), "zero point of another type, shape or range"),
        (np.float32(1.0), np.float32(0), group(), "zero point of another type, shape or range"),
        (np.float32(1.0), None, group(axis="0"), "damaged"),
        (np.float32(1.0), None, {"group": 3}, "damaged"),
    ],
)
def test_damaged_scales(
    tmp_path: Path,
    scale: np.ndarray,
    zero_point: np.ndarray | None,
    entry: dict[str, object],
    message: str,
) -> None:
    arrays = {"0.scale": np.asarray(scale)}
    if zero_point is not None:
        arrays["0.zero_point"] = np.asarray(zero_point)
    text = json.dumps({"version": 1, "groups": [entry]})
    save_file(arrays, tmp_path / "s.safetensors", {"fuseq_scales": text})
    with pytest.raises(CalibrationError, match=message):
        Scales.load(tmp_path / "s.safetensors")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "without fuseq's scales"),
        ({"fuseq_scales": "{"}, "damaged"),
        ({"fuseq_scales": "[" * 100_000}, "damaged"),
        ({"fuseq_scales": '{"version": 2, "groups": []}'}, "not scales of version 1"),
        ({"fuseq_scales": '{"version": 1}'}, "list of groups"),
    ],
)
def test_other_safetensors_files(
    tmp_path: Path, metadata: dict[str, str] | None, message: str
) -> None:
    save_file({"a": np.zeros(1)}, tmp_path / "s.safetensors", metadata)
    with pytest.raises(CalibrationError, match=message):
        Scales.load(tmp_path / "s.safetensors")
