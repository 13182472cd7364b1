"""Pickles are read as data: nothing that they name is imported or called."""

from __future__ import annotations

import collections
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuseq.errors import ModelError
from fuseq.modelopt.pickle_data import Call, Named, read_pickle


def read(data: bytes, builders: Any = None) -> Any:
    return read_pickle(data, "file", builders or {}, lambda key: ("persistent", key))


class Attack:
    """Runs a command when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back(protocol: int) -> None:
    shared = [1, 2]
    value = {
        "none": None, "flags": (True, False), "numbers": [0, 255, 65536, -1, 2**70, 1.5, 1e300],
        "text": "ä\n", "bytes": b"ab", "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "shared": [shared, shared], "nested": {"a": {"b": []}},
    }  # fmt: skip
    if protocol < 3:
        del value["bytes"]  # protocols 0 to 2 write them as a call of codecs.encode
    assert read(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_runs_nothing(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    data = pickle.dumps({"weights": [Attack(mark)]}, protocol)
    found = read(data)
    assert found == {"weights": [Call(Named(os.system.__module__, "system"), (f"touch {mark}",))]}
    assert not mark.exists()
    pickle.loads(data)  # noqa: S301  the attack is real: the pickle module does run it
    assert mark.exists()


def test_reading_imports_nothing_that_the_file_names() -> None:
    code = (
        "import sys\n"
        "from fuseq.modelopt.pickle_data import read_pickle\n"
        "print(read_pickle(b'cantigravity\\ngeohash\\n(I1\\ntR.', 'f', {}, None))\n"
        "print('antigravity' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_objects_are_records_without_their_state() -> None:
    found = read(pickle.dumps(collections.Counter({"a": 1})))
    assert found == Call(Named("collections", "Counter"), ({"a": 1},))
    path = read(pickle.dumps(Path("a"), 2))
    assert isinstance(path, Call)
    assert path.arguments == ("a",)


def test_builders_are_fuseqs_own_and_go_by_exact_name() -> None:
    data = pickle.dumps(collections.OrderedDict(a=1))
    assert read(data, {"collections.OrderedDict": lambda arguments: {}}) == {"a": 1}
    with pytest.raises(ModelError, match="items for a Call, not a dict"):
        read(data, {"collections.orderedDict": lambda arguments: {}})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "damaged or not a pickle"),
        (b"\x80\x02]q\x00", "damaged or not a pickle"),
        (b"\x80\x02.", "damaged or not a pickle"),
        (b"(i__main__\nC\n.", "opcode INST is not data"),
        (b"\x80\x02\x82\x01.", "opcode EXT1 is not data"),
        (b"(cos\nsystem\no.", "opcode OBJ is not data"),
        (b"Pkey\n.", "opcode PERSID is not data"),
        (b"((K\x01\x86.", "a mark where a value is needed"),
        (b"K\x01K\x02R.", "a call of something that is not a name"),
        (b"cos\nsystem\n(I1\ntRR.", "the stack is empty"),
        (b"h\x07.", "7"),
        (b"}]K\x01s.", "unhashable"),
        (b"PK\x03\x04", "damaged or not a pickle"),
    ],
)
def test_what_is_not_data_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(data)
    assert str(caught.value).startswith("file: ")
    assert what in str(caught.value)
