"""Files of torch.save as arrays, and what a damaged or hostile one gives."""

from __future__ import annotations

import collections
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuseq.errors import ModelError
from fuseq.modelopt.torch_file import read_torch_file


def saved(value: Any, folder: Path) -> Path:
    torch.save(value, folder / "file.pth")
    return folder / "file.pth"


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    ],
)  # fmt: skip
def test_tensors_of_every_type_come_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    found = read_torch_file(saved({"t": tensor}, tmp_path))["t"]
    assert found.dtype.name == str(dtype).removeprefix("torch.")
    assert found.shape == (3, 4)
    assert found.tobytes() == tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_views_share_storage_and_keep_their_strides(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    value = {"turned": base.T, "part": base[1:3, ::2], "scalar": base[2, 3], "empty": base[:0]}
    found = read_torch_file(saved(value, tmp_path))
    for name, tensor in value.items():
        assert np.array_equal(found[name], tensor.numpy()), name
        assert found[name].shape == tuple(tensor.shape)


def test_state_dicts_parameters_and_sizes(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    value = {"state": module.state_dict(), "weight": module.weight, "size": module.weight.shape}
    found = read_torch_file(saved(value, tmp_path))
    assert list(found["state"]) == ["weight", "bias"]
    assert np.array_equal(found["weight"], module.weight.detach().numpy())
    assert found["size"] == (2, 3)


def test_a_malicious_file_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "executed"

    class Attack:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    file = saved({"w": torch.ones(2), "attack": Attack()}, tmp_path)
    assert np.array_equal(read_torch_file(file)["w"], np.ones(2, np.float32))
    assert not mark.exists()
    torch.load(file, weights_only=False)  # the attack is real
    assert mark.exists()


def rewritten(
    file: Path, change: dict[str, bytes | None], compress: int = zipfile.ZIP_STORED
) -> Path:
    """The archive with members replaced (or left out: None)."""
    other = file.with_name("changed.pth")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(other, "w", compress) as new:
        for name in old.namelist():
            data = change.get(name.partition("/")[2], old.read(name))
            if data is not None:
                new.writestr(name, data)
    return other


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data/0": b"\0" * 7}, "storage 0 has 7 bytes, its header says 4 elements"),
        ({"data/0": None}, "data/0 is missing"),
        ({"data.pkl": None}, "it has no data.pkl"),
        ({"byteorder": b"big"}, "stored big-endian"),
        ({"data.pkl": b"\x80\x02]"}, "ends too early|damaged"),
    ],
)
def test_damage_is_named(change: dict[str, bytes | None], what: str, tmp_path: Path) -> None:
    file = rewritten(saved({"t": torch.ones(4)}, tmp_path), change)
    with pytest.raises(ModelError, match=what):
        read_torch_file(file)


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    file = rewritten(saved({"t": torch.ones(4)}, tmp_path), {}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="is compressed, which torch.save never does"):
        read_torch_file(file)


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [(1, (4,), (1,)), (0, (2, 4), (4, 1)), (0, (4,), (2,)), (-1, (2,), (1,)), (3, (2,), (-1,)),
     (0, (1000, 1000), (0, 0))],
)  # fmt: skip
def test_a_tensor_may_not_leave_its_storage(
    offset: int, size: tuple[int, ...], stride: tuple[int, ...], tmp_path: Path
) -> None:
    class Reaching:
        def __reduce__(self) -> Any:
            storage = torch.ones(4).untyped_storage()
            typed = torch.storage.TypedStorage(
                wrap_storage=storage, dtype=torch.float32, _internal=True
            )
            arguments = (typed, offset, size, stride, False, collections.OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments

    with pytest.raises(ModelError, match="leaves its storage"):
        read_torch_file(saved([Reaching()], tmp_path))


@pytest.mark.parametrize("data", [b"", b"\x80\x02}q\x00.", b"PK\x03\x04 and so on"])
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.pth").write_bytes(data)
    with pytest.raises(ModelError, match="not a zip file"):
        read_torch_file(tmp_path / "file.pth")


def test_every_truncation_gives_one_sentence(tmp_path: Path) -> None:
    whole = saved({"t": torch.ones(4)}, tmp_path).read_bytes()
    for length in range(0, len(whole) - 1, 37):
        (tmp_path / "cut.pth").write_bytes(whole[:length])
        with pytest.raises(ModelError):
            read_torch_file(tmp_path / "cut.pth")
