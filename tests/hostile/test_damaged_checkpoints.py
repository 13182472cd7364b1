"""Checkpoints of prepared modules with damage in any of their files: refused in one sentence, or usable."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
from pathlib import Path

import pytest

from fuseq.errors import FuseqError
from tests.hostile.mutations import damaged_bytes, damaged_json

torch = pytest.importorskip("torch")

import fuseq.torch  # noqa: E402
from fuseq.options import QuantizeOptions  # noqa: E402
from tests.torch import nets  # noqa: E402

CASES = max(10, int(os.environ.get("FUSEQ_HOSTILE_CASES", "2000")) // 100)
FILES = ("model.safetensors", "fuseq.safetensors", "fuseq_plan.json")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = QuantizeOptions(format="int8", target="tensorrt:sm80", policy="full")
    data = nets.images()
    net = fuseq.torch.prepare(nets.conv_net(), data[0], options=options)
    fuseq.torch.calibrate(net, data)
    folder = tmp_path_factory.mktemp("checkpoint")
    fuseq.torch.save(net, folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def damaged_header(chance: random.Random, data: bytes) -> bytes:
    """Damage the JSON that fuseq keeps in a safetensors header; the file around it stays whole."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    kept = header["__metadata__"]
    kept["fuseq_checkpoint"] = damaged_json(chance, kept["fuseq_checkpoint"].encode()).decode(
        errors="replace"
    )
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


@pytest.mark.parametrize("seed", range(CASES))
def test_damage_ends_in_one_sentence_or_a_module(seed: int, folder: Path) -> None:
    chance = random.Random(f"checkpoint {seed}")
    name, damage = chance.choice(
        (
            ("fuseq.safetensors", damaged_header),
            ("fuseq.safetensors", damaged_bytes),
            ("fuseq_plan.json", damaged_json),
            ("model.safetensors", damaged_bytes),
        )
    )
    file = folder / name
    file.write_bytes(damage(chance, file.read_bytes()))
    try:
        fuseq.torch.load(nets.conv_net(), folder, nets.images()[0])
    except FuseqError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pickle", "fifo", "folder", "dangling link", "terabyte"])
def test_what_is_no_file_of_ours_is_refused(
    name: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    file = folder / name
    file.unlink()
    if kind == "pickle":
        file.write_bytes(pickle.dumps(Payload()))
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "dangling link":
        file.symlink_to("nowhere")
    else:
        entry = {"scales": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
        text = json.dumps(entry).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(FuseqError):
        fuseq.torch.load(nets.conv_net(), folder, nets.images()[0])
    assert not (folder / "executed").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("places", {"x": 3}, "do not fit their list"),
        ("places", {"x": [0, 1 << 70]}, "do not fit their list"),
        ("places", {"x": [-1, 1]}, "do not fit their list"),
        ("zero_points", {"x": "0"}, "zero_points of 'x' is no usable number"),
        ("magnitudes", {"x": 10**400}, "magnitudes of 'x' is no usable number"),
        ("options", {"shapes": {"x": 3}}, "options cannot be used"),
    ],
)
def test_numbers_of_a_wrong_kind_are_named(
    key: str, value: object, message: str, folder: Path
) -> None:
    def changed(_: random.Random, data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        state = json.loads(header["__metadata__"]["fuseq_checkpoint"])
        state[key] = value if key == "options" else {**state[key], **dict(value)}  # type: ignore[call-overload]
        header["__metadata__"]["fuseq_checkpoint"] = json.dumps(state)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    file = folder / "fuseq.safetensors"
    file.write_bytes(changed(random.Random(0), file.read_bytes()))
    with pytest.raises(FuseqError, match=message):
        fuseq.torch.load(nets.conv_net(), folder, nets.images()[0])
