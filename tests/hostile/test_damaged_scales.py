"""Scale files with damage in bytes, arrays or header: refused in one sentence, or usable scales."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from fuseq.calibration.scales import Scale, Scales
from fuseq.errors import FuseqError
from tests.hostile.mutations import damaged_bytes, damaged_json

CASES = max(200, int(os.environ.get("FUSEQ_HOSTILE_CASES", "2000")) // 10)


@pytest.fixture
def original(tmp_path: Path) -> bytes:
    rows = np.full(16, 0.25, np.float32)
    scales = Scales(
        {
            "x": Scale(np.float32(0.5) * np.ones((), np.float32), np.array(3, np.int32), "uint8"),
            "w": Scale(rows, None, "int8", 0),
            "b": Scale(rows, None, "int32", 0),
        }
    )
    scales.save(tmp_path / "whole.safetensors")
    return (tmp_path / "whole.safetensors").read_bytes()


def damaged_header(chance: random.Random, data: bytes) -> bytes:
    """Damage safetensors' own JSON, or fuseq's within it."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    if chance.random() < 0.6:
        text = header["__metadata__"]["fuseq_scales"].encode()
        header["__metadata__"]["fuseq_scales"] = damaged_json(chance, text).decode(errors="replace")
        changed = json.dumps(header).encode()
    else:
        changed = damaged_json(chance, json.dumps(header).encode())
    return struct.pack("<Q", len(changed)) + changed + data[8 + length :]


def test_damage_ends_in_one_sentence_or_scales(original: bytes, tmp_path: Path) -> None:
    file = tmp_path / "damaged.safetensors"
    refused = 0
    for seed in range(CASES):
        chance = random.Random(f"scales {seed}")
        file.write_bytes(chance.choice((damaged_bytes, damaged_header))(chance, original))
        try:
            scales = Scales.load(file)
        except FuseqError as error:
            assert "\n" not in str(error), (seed, error)
            refused += 1
            continue
        for name, scale in scales.items():
            assert np.isfinite(scale.scale).all() and (scale.scale > 0).all(), (seed, name)
    assert refused > CASES // 3


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "scales.safetensors"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    with pytest.raises(FuseqError, match="no such scale file"):
        Scales.load(file)
