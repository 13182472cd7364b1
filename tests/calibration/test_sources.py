from __future__ import annotations

import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from safetensors.numpy import save_file

from fuseq.calibration.batches import Batch, Source
from fuseq.calibration.sources import open_source
from fuseq.errors import CalibrationError, OptionError


def model(inputs: str) -> ir.Model:
    """A model of which only the inputs matter."""
    first = inputs.replace("(", " ").split("]")[0].split("[")[1]
    return ir.from_proto(
        parser.parse_model(
            f"""<ir_version: 10, opset_import: ["" : 21]>
            net ({inputs}) => (float[{first}] y) {{
              y = Cast <to = 1> ({inputs.split("]", 1)[1].split(",", maxsplit=1)[0].strip()}) }}"""
        )
    )


VECTORS = "float[N, 3] x"
TWO = "float[N, 3] x, int64[N] i"


def rows(count: int, width: int = 3) -> np.ndarray:
    return np.arange(1, count * width + 1, dtype=np.float32).reshape(count, width)


def joined(source: Source, name: str = "x") -> np.ndarray:
    return np.concatenate([batch[name] for batch in source])


def test_npy_is_cut_into_small_batches_and_read_again(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows(20))
    source = open_source(tmp_path / "x.npy", model(VECTORS))
    assert [len(batch["x"]) for batch in source] == [8, 8, 4]
    np.testing.assert_array_equal(joined(source), rows(20))
    np.testing.assert_array_equal(joined(source), rows(20))
    assert source.length == 3 and source.description == f"20 samples of {tmp_path / 'x.npy'}"
    assert source.notes == []


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, "safetensors"])
def test_named_arrays(tmp_path: Path, save: Any) -> None:
    arrays = {"x": rows(11), "i": np.arange(11)}
    file = tmp_path / ("a.safetensors" if save == "safetensors" else "a.npz")
    save_file(arrays, file) if save == "safetensors" else save(file, **arrays)
    source = open_source(str(file), model(TWO))
    for _ in range(2):
        np.testing.assert_array_equal(joined(source), rows(11))
        np.testing.assert_array_equal(joined(source, "i"), np.arange(11))
    assert source.length == 2


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_fortran_order(tmp_path: Path, suffix: str) -> None:
    array = np.asfortranarray(rows(20))
    file = tmp_path / f"x.{suffix}"
    np.save(file, array) if suffix == "npy" else np.savez(file, x=array)
    np.testing.assert_array_equal(joined(open_source(file, model(VECTORS))), rows(20))


def test_limit(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows(20))
    source = open_source(tmp_path / "x.npy", model(VECTORS), limit=10)
    np.testing.assert_array_equal(joined(source), rows(10))
    assert source.length == 2
    fixed = open_source(tmp_path / "x.npy", model("float[4, 3] x"), limit=6)
    assert [batch["x"].shape for batch in fixed] == [(4, 3)] * 2


def test_fixed_batch_pads_the_last_one_by_repeating(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows(6))
    source = open_source(tmp_path / "x.npy", model("float[4, 3] x"))
    first, last = list(source)
    np.testing.assert_array_equal(first["x"], rows(6)[:4])
    np.testing.assert_array_equal(last["x"], rows(6)[[4, 5, 4, 5]])
    assert len(source.notes) == 1 and "the last batch repeats samples" in source.notes[0]
    one = open_source(tmp_path / "x.npy", model("float[1, 3] x"))
    assert one.length == 6 and one.notes == []


def test_fixed_rows_that_differ_between_inputs(tmp_path: Path) -> None:
    two = model("float[2, 3] x, int64[1] i")
    np.savez(tmp_path / "a.npz", x=rows(10), i=np.arange(5))
    source = open_source(tmp_path / "a.npz", two)
    assert [(len(b["x"]), len(b["i"])) for b in source] == [(2, 1)] * 5
    np.savez(tmp_path / "b.npz", x=rows(10), i=np.arange(4))
    with pytest.raises(
        CalibrationError, match="different numbers of batches: x has 10 rows, i has 4"
    ):
        open_source(tmp_path / "b.npz", two)


def test_inputs_of_free_but_different_lengths(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(10), i=np.arange(4))
    with pytest.raises(CalibrationError, match="different numbers of samples: x has 10, i has 4"):
        open_source(tmp_path / "a.npz", model(TWO))
    source = open_source(tmp_path / "a.npz", model("float[N, 3] x, int64[M] i"))
    assert [(len(b["x"]), len(b["i"])) for b in source] == [(10, 4)]


def test_scalar_goes_into_every_batch(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(10), s=np.float32(7))
    source = open_source(tmp_path / "a.npz", model("float[N, 3] x, float s"))
    assert [(len(b["x"]), float(b["s"])) for b in source] == [(8, 7.0), (2, 7.0)]


def test_folder_of_ragged_files(tmp_path: Path) -> None:
    for length in (5, 2, 9):
        np.savez(tmp_path / f"{length}.npz", x=rows(2, length), i=np.arange(2))
    source = open_source(tmp_path, model("float[N, L] x, int64[N] i"))
    assert [batch["x"].shape for batch in source] == [(2, 2), (2, 5), (2, 9)]
    assert source.description == f"3 files of {tmp_path}" and source.length == 3
    assert len(list(open_source(tmp_path, model("float[N, L] x, int64[N] i"), limit=3))) == 2


def test_safe_casts_with_a_note(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(3).astype(np.float64), i=np.arange(3, dtype=np.int32))
    source = open_source(tmp_path / "a.npz", model(TWO))
    (batch,) = source
    assert batch["x"].dtype == np.float32 and batch["i"].dtype == np.int64
    assert source.notes == [
        "input 'x': cast from float64 to float32.",
        "input 'i': cast from int32 to int64.",
    ]


def test_bfloat16_model_and_file(tmp_path: Path) -> None:
    save_file({"x": rows(3).astype(ml_dtypes.bfloat16)}, tmp_path / "a.safetensors")
    (batch,) = open_source(tmp_path / "a.safetensors", model("bfloat16[N, 3] x"))
    assert batch["x"].dtype == ml_dtypes.bfloat16
    (batch,) = open_source(tmp_path / "a.safetensors", model(VECTORS))
    np.testing.assert_array_equal(batch["x"], rows(3))


def with_nan() -> np.ndarray:
    array = rows(3)
    array[1, 1] = np.nan
    return array


@pytest.mark.parametrize(
    ("arrays", "inputs", "message"),
    [
        ({"z": rows(3)}, VECTORS, r"no array for the model's input 'x'; it has \['z'\]"),
        ({"x": rows(3), "z": rows(3)}, VECTORS, r"'z' is not an input .* inputs are \['x'\]"),
        (
            {"x": rows(3, 4)},
            VECTORS,
            r"'x' of .*found shape \[3, 4\], the model takes \[samples, 3\]",
        ),
        (
            {"x": np.ones(3, np.float32)},
            VECTORS,
            r"found rank 1 .*takes rank 2 .*add the batch axis",
        ),
        ({"x": np.ones((1, 1, 3), np.float32)}, VECTORS, "found rank 3 .*reshape the array"),
        ({"x": rows(0)}, VECTORS, r"'x' of .* is empty \(shape \[0, 3\]\)"),
        ({"x": with_nan()}, VECTORS, "'x' of batch 1 of .*: found NaN"),
        ({"x": rows(2) * np.float32(np.inf)}, VECTORS, "found an infinite value"),
        (
            {"x": np.ones((2, 3), np.uint8)},
            VECTORS,
            "found uint8, the model takes float32; prepare",
        ),
        ({"x": np.full((2, 3), 1e39)}, VECTORS, "a value of float64 does not fit float32"),
        (
            {"x": rows(2), "i": rows(2)[:, 0]},
            TWO,
            "'i' .*found float32, the model takes int64; give",
        ),
        ({"i": np.array([300])}, "uint8[N] i", "'i' .*values from 300 to 300 do not fit"),
        ({"i": np.array([2])}, "bool[N] i", "'i' .*give only 0 and 1"),
        ({"x": np.ones((2, 3), np.complex64)}, VECTORS, "found complex64 values"),
    ],
)
def test_arrays_that_do_not_fit(
    tmp_path: Path, arrays: dict[str, np.ndarray], inputs: str, message: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(CalibrationError, match=message):
        list(open_source(tmp_path / "a.npz", model(inputs)))


def test_dimensions_of_one_name_must_agree() -> None:
    two = model("float[N, L] x, int64[N, L] mask")
    batch = {"x": np.ones((2, 5), np.float32), "mask": np.ones((2, 4), np.int64)}
    with pytest.raises(CalibrationError, match="'mask' .*dimension 'L' is 4, but 5 in input 'x'"):
        list(open_source([batch], two))


def pickled_file(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def truncated_npy(path: Path) -> None:
    np.save(path, rows(100))
    path.write_bytes(path.read_bytes()[:-7])


def truncated_npz(path: Path) -> None:
    np.savez(path, x=rows(100))
    path.write_bytes(path.read_bytes()[:-200])


def damaged_npz(path: Path) -> None:
    np.savez(path, x=rows(1000))
    data = bytearray(path.read_bytes())
    data[3000] ^= 0xFF
    path.write_bytes(bytes(data))


def lying_npz(path: Path) -> None:
    np.savez(path, x=rows(4))
    with zipfile.ZipFile(path) as archive:
        data = archive.read("x.npy").replace(b"(4, 3)", b"(9, 3)")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", data)


def npz_of_objects(path: Path) -> None:
    np.savez(path, x=np.array([{"a": 1}], dtype=object))


def npz_with_text(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def pickle_itself(path: Path) -> None:
    path.write_bytes(pickle.dumps({"x": 1}))


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("x.npy", pickled_file, r"x.npy: holds Python objects \(a pickle\)"),
        ("x.npy", truncated_npy, "x.npy: truncated: its header promises 1328 bytes, .* has 1321"),
        ("x.npy", pickle_itself, "x.npy: not a NumPy array file"),
        ("x.npz", truncated_npz, "x.npz: not an .npz file"),
        ("x.npz", damaged_npz, "x.npz: damaged"),
        ("x.npz", lying_npz, "array 'x' is shorter than its header says"),
        ("x.npz", npz_of_objects, r"array 'x': holds Python objects"),
        ("x.npz", npz_with_text, "member 'readme.txt' is not an array"),
        ("x.npz", pickle_itself, "x.npz: not an .npz file"),
        ("x.safetensors", pickle_itself, "not a safetensors file .* a pickle .* is refused"),
    ],
)
def test_files_that_are_damaged_or_dangerous(
    tmp_path: Path, name: str, write: Any, message: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(CalibrationError, match=message):
        list(open_source(tmp_path / name, model(VECTORS)))


def test_npy_needs_a_model_of_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows(2))
    with pytest.raises(CalibrationError, match=r"holds one array, the model has 2 inputs \(x, i\)"):
        open_source(tmp_path / "x.npy", model(TWO))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing here", "does not exist; give a folder of images"),
        ("missing.npz", "no such calibration file"),
        ("no_such_module_x:f", "module 'no_such_module_x' cannot be imported"),
        ("math:nothing", "math has no such name"),
        ("math:pi", "math is not a function"),
        (3, "calibration data of type int cannot be read"),
    ],
)
def test_sources_that_are_not_there(given: Any, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        open_source(given, model(VECTORS))


def test_folders_and_files_that_are_no_source(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"no images .* and no array files"):
        open_source(tmp_path, model(VECTORS))
    np.save(tmp_path / "x.npy", rows(2))
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(CalibrationError, match="holds array files .x.npy. and images .a.png"):
        open_source(tmp_path, model(VECTORS))
    with pytest.raises(CalibrationError, match="a .png file is no source; give its folder"):
        open_source(tmp_path / "a.png", model(VECTORS))
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(CalibrationError, match="a .csv file is no source; allowed are a folder"):
        open_source(tmp_path / "a.csv", model(VECTORS))


def test_module_and_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_calibration_data.py").write_text(
        "import numpy as np\n"
        "def batches():\n"
        "    for n in (2, 3):\n"
        "        yield {'x': np.full((n, 3), n, np.float32)}\n"
    )
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    source = open_source("my_calibration_data:batches", model(VECTORS))
    assert sys.path == path
    for _ in range(2):
        assert [len(batch["x"]) for batch in source] == [2, 3]
    assert source.description == "my_calibration_data:batches" and source.length == 2


def test_python_objects() -> None:
    batches = [{"x": rows(2)}, {"x": rows(5)}]
    by_list = open_source(batches, model(VECTORS))
    by_function = open_source(lambda: batches, model(VECTORS))
    by_arrays = open_source([rows(2), rows(5).tolist()], model(VECTORS))
    for source in (by_list, by_function, by_arrays):
        assert [len(batch["x"]) for batch in source] == [2, 5]
    assert open_source(by_list, model(VECTORS)) is by_list
    limited = open_source([{"x": rows(2)}] * 9, model(VECTORS), limit=5)
    assert len(list(limited)) == 3


def test_batches_of_a_fixed_model_are_cut_to_its_size() -> None:
    source = open_source([rows(6), rows(2)], model("float[4, 3] x"))
    first, second, third = (batch["x"] for batch in source)
    np.testing.assert_array_equal(
        np.concatenate([first, second]), rows(6)[[0, 1, 2, 3, 4, 5, 4, 5]]
    )
    np.testing.assert_array_equal(third, rows(2)[[0, 1, 0, 1]])
    assert len(source.notes) == 1


def test_a_buffer_that_is_filled_again_is_copied() -> None:
    def same_buffer() -> Iterator[Batch]:
        buffer = np.zeros((1, 3), np.float32)
        for number in range(3):
            buffer[:] = number
            yield {"x": buffer}

    batches = list(open_source(same_buffer, model(VECTORS)))
    assert [float(batch["x"][0, 0]) for batch in batches] == [0, 1, 2]


def test_generator_is_kept_while_small_and_refused_the_second_time_when_large() -> None:
    small = open_source(({"x": rows(2)} for _ in range(3)), model(VECTORS))
    assert len(list(small)) == len(list(small)) == 3
    big = np.ones((2**22, 3), np.float32)  # 48 MiB, so that two are over what is kept
    large = open_source(({"x": big} for _ in range(2)), model(VECTORS))
    assert len(list(large)) == 2
    with pytest.raises(CalibrationError, match="a generator gives its batches only once"):
        list(large)


@pytest.mark.parametrize(
    ("item", "inputs", "message"),
    [
        ({"x": "text"}, VECTORS, "input 'x' of batch 1 of a list: found <U4 values"),
        ({"x": [[1.0], [1.0, 2.0]]}, VECTORS, "list cannot become an array"),
        (rows(2), TWO, "found ndarray, and the model has 2 inputs; yield a dict"),
        ({"x": rows(2)}, TWO, "no array for the model's input 'i'"),
        ({}, VECTORS, "no array for the model's input 'x'; it has none"),
        ({"x": rows(0)}, "float[4, 3] x", "is empty"),
    ],
)
def test_items_that_do_not_fit(item: Any, inputs: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        list(open_source([item], model(inputs)))


GATHER = """
<ir_version: 10, opset_import: ["" : 21]>
net (int64[N, 4] ids, int32[N, 4] types, int64[N, 4] mask, bool[N] flag, float16[N, 2] f)
    => (float[N, 4, 2] y) <float[30, 2] words, float[2, 2] kinds> {
  w = Gather(words, ids)
  flat = Reshape(types, shape)
  wide = Cast <to = 7> (flat)
  k = Gather(kinds, wide)
  m = Cast <to = 1> (mask)
  y = Identity(w)
}"""


def test_random_data_is_seeded_valid_and_loudly_noted() -> None:
    gather = ir.from_proto(parser.parse_model(GATHER))
    one, same, other = (list(open_source("random", gather, seed=s)) for s in (3, 3, 4))
    for first, second in zip(one, same, strict=True):
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])
    assert (one[0]["f"] != other[0]["f"]).any()
    ids = np.concatenate([batch["ids"] for batch in one])
    assert ids.min() >= 0 and 2 < ids.max() < 30 and ids.dtype == np.int64
    types = np.concatenate([batch["types"] for batch in one])
    assert set(np.unique(types)) == {0, 1} and types.dtype == np.int32
    assert all((batch["mask"] == 1).all() and batch["flag"].all() for batch in one)
    assert one[0]["f"].dtype == np.float16 and one[0]["f"].shape == (1, 2)
    assert open_source("random", gather).notes[0].startswith("RANDOM calibration data")
    assert len(list(open_source("random", gather, limit=3))) == 3


def test_random_data_needs_open_dimensions() -> None:
    with pytest.raises(OptionError, match="--shape x:N,L"):
        open_source("random", model("float[N, L] x"))
    (batch, *_) = open_source("random", model("float[N, L] x"), shapes={"x": (2, 7)})
    assert batch["x"].shape == (2, 7)
