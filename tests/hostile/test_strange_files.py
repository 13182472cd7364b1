"""Files that are not what their name says: bombs, pickles, pipes, devices, links, full disks.

Each ends in one sentence (exit code 2), in bounded processor time and memory, with nothing executed and
nothing written.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import sys
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from fuseq.cli.main import run
from fuseq.model import save
from tests.graphs import conv_net

QUANTIZE = [
    "quantize",
    "net.onnx",
    "-o",
    "out.onnx",
    "--target",
    "tensorrt:sm80",
    "--policy",
    "full",
]
LIMIT_S = 10.0
MEMORY_BYTES = 400e6
"""Of what Python and NumPy hold at once; the largest harmless image here takes a tenth of it."""


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(conv_net(), "net.onnx")
    return tmp_path


def listed() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence that a command ends in."""
    before, began = listed(), time.process_time()
    tracemalloc.start()
    try:
        code = run(words)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    said = capsys.readouterr().err
    assert code == 2, said
    lines = [line for line in said.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1 and lines[0].startswith("error: "), said
    assert time.process_time() - began < LIMIT_S
    assert peak < MEMORY_BYTES
    assert listed() == before and not Path("executed").exists()
    return lines[0]


# Arrays.


def header(shape: tuple[int, ...], fortran: bool = False) -> bytes:
    stream = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)  # type: ignore[no-untyped-call]
    return stream.getvalue()


def zipped(name: str, data: bytes, zeros: int) -> bytes:
    """An .npz that says of one small deflated member that it holds many zeros."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(name, "w") as f,
    ):
        f.write(data)
        for _ in range(zeros >> 20):
            f.write(bytes(1 << 20))
    return stream.getvalue()


def tensors(entries: dict[str, object]) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


ARRAYS: dict[str, Callable[[], bytes]] = {
    "pickle.npy": lambda: pickle.dumps(Payload()),
    "pickle.npz": lambda: pickle.dumps(Payload()),
    "pickle.safetensors": lambda: pickle.dumps(Payload()),
    "terabyte.npy": lambda: header((1 << 30, 16, 8, 8)) + bytes(64),
    "overflow.npy": lambda: header((1 << 62, 16, 8, 8)) + bytes(64),
    "negative.npy": lambda: header((-4, 16, 8, 8)) + bytes(64),
    "truth.npy": lambda: header((True, 16, 8, 8)) + bytes(4096 * 16),
    "endless-header.npy": lambda: b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b" " * 99,
    "nested-header.npy": lambda: b"\x93NUMPY\x01\x00" + struct.pack("<H", 60_000) + b"(" * 60_000,
    "terabyte.safetensors": lambda: tensors(
        {"x": {"dtype": "F32", "shape": [1 << 28, 16, 8, 8], "data_offsets": [0, 1 << 40]}}
    ),
    "endless.safetensors": lambda: struct.pack("<Q", 1 << 62) + b"{}",
    "bomb-row.npz": lambda: zipped("x.npy", header((1, 16, 1024, 32_768)), 2 << 30)
    if os.environ.get("FUSEQ_HOSTILE_CASES")
    else zipped("x.npy", header((1, 16, 1024, 8192)), 1 << 29),
    "other-name.npz": lambda: zipped("../../x.npy", header((2, 16, 8, 8)), 1 << 20),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ARRAYS))
def test_arrays(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_bytes(ARRAYS[name]())
    assert name in refused([*QUANTIZE, "--calib", name], capsys)


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_arrays_that_are_no_files(
    suffix: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"data.{suffix}"
    strange(Path(name), kind)
    assert name in refused([*QUANTIZE, "--calib", name], capsys)
    Path("folder").mkdir()
    Path(name).rename(f"folder/{name}")
    assert "folder" in refused([*QUANTIZE, "--calib", "folder"], capsys)


def strange(file: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(file)  # opening it would wait for ever
    elif kind == "device":
        file.symlink_to("/dev/zero")  # reading it would never end
    elif kind == "loop":
        file.symlink_to(file.name)
    else:
        file.mkdir()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("os.path:join", "raised TypeError"),
        ("sys:exit", "raised SystemExit"),
        ("os:getpid", "'int' object is not iterable"),
        ("mine:late", "raised ZeroDivisionError: division by zero, mine.py:3"),
        ("broken:batches", "cannot be imported (SyntaxError"),
        ("leaving:batches", "cannot be imported (SystemExit"),
    ],
)
def test_functions_that_fail(
    text: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("mine.py").write_text(
        "def late():\n    yield {'x': __import__('numpy').ones((1, 16, 8, 8), 'f')}\n    1 / 0\n"
    )
    Path("broken.py").write_text("def batches(:\n")
    Path("leaving.py").write_text("raise SystemExit(0)\n")
    assert told in refused([*QUANTIZE, "--calib", text], capsys)


# Images.


def png(width: int, height: int, bits: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )  # fmt: skip


IMAGES: dict[str, Callable[[], bytes]] = {
    "ten-gigapixels.png": lambda: png(100_000, 100_000, 8, bytes(1000)),
    "wide-strip.png": lambda: png(4_000_000, 1, 1, bytes(500_001)),
    "tall-strip.png": lambda: png(1, 1_000_000, 1, bytes(2_000_000)),
    "nothing.png": lambda: png(0, 0, 8, b""),
    "pickle.png": lambda: pickle.dumps(Payload()),
    "postscript.png": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n(executed) (w) file closefile showpage\n",
}


@pytest.fixture
def image_net() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    net (float[N, 3, 24, 24] x) => (float[N, 3, 24, 24] y) { y = Relu(x) }"""
    onnx.save(parser.parse_model(text), "net.onnx")


@pytest.mark.parametrize("name", list(IMAGES))
@pytest.mark.usefixtures("image_net")
def test_images(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL")
    Path("images").mkdir()
    Path("images", name).write_bytes(IMAGES[name]())
    assert name in refused([*QUANTIZE, "--calib", "images"], capsys)


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder"])
@pytest.mark.usefixtures("image_net")
def test_images_that_are_no_files(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL")
    Path("images").mkdir()
    strange(Path("images", "a.png"), kind)
    assert "images" in refused([*QUANTIZE, "--calib", "images"], capsys)


# JSON and TOML.

TEXTS = {
    "number of 5000 digits": '{"version": ' + "9" * 5000 + "}",
    "deep": "[" * 100_000,
    "not a number": '{"version": NaN}',
    "zero bytes": "\0" * 100,
    "half a character": '{"version": "\\ud800"}',
    "pipe": "", "device": "", "loop": "", "folder": "",
}  # fmt: skip
READERS: dict[str, list[str]] = {
    "plan": [*QUANTIZE, "--calib", "random", "--plan-in", "strange.json"],
    "layer list": ["check", "--layer-info", "strange.json"],
    "profile": ["check", "--layer-info", "layers.json", "--profile", "strange.json"],
    "times": ["profile", "layers.json", "--profile", "profile.json", "--times", "strange.json"],
    "document": ["report", "strange.json", "-o", "page.html"],
    "recorded outputs": ["compare", "net.onnx", "strange.json", "--data", "random"],
    "model": ["plan", "strange.json", "--target", "tensorrt:sm80"],
    "triton": ["triton", "strange.json", "--out", "models"],
}


@pytest.mark.parametrize("text", list(TEXTS))
@pytest.mark.parametrize("reader", list(READERS))
def test_json(reader: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    tensor = {"Name": "x", "Dimensions": [1, 16, 8, 8], "Format/Datatype": "INT8"}
    layer = {"Name": "c", "LayerType": "CaskConvolution", "Inputs": [tensor], "Outputs": [tensor]}
    Path("layers.json").write_text(json.dumps({"Layers": [layer]}))
    Path("profile.json").write_text(
        json.dumps([{"count": 1}, {"name": "c", "timeMs": 1, "averageMs": 1, "percentage": 100}])
    )
    if TEXTS[text]:
        Path("strange.json").write_text(TEXTS[text])
    else:
        strange(Path("strange.json"), text)
    refused(READERS[reader], capsys)


@pytest.mark.parametrize("kind", ["pipe", "folder", "9" * 5000, "a = " + "[" * 100_000, "\0"])
def test_settings(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    if kind in ("pipe", "folder"):
        strange(Path("fuseq.toml"), kind)
    else:
        Path("fuseq.toml").write_text(f"batch = {kind}" if kind.isdigit() else kind)
    if kind in ("pipe", "folder"):  # as a folder of that name it is not settings
        assert run(["check", "net.onnx", "--no-compile"]) in (0, 2)
    else:
        assert "fuseq.toml" in refused(["check", "net.onnx", "--no-compile"], capsys)


def test_a_name_of_half_a_character_is_shown_as_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tensor = {"Name": "x", "Dimensions": [1, 16, 8, 8], "Format/Datatype": "INT8"}
    layer = {"Name": "\ud800", "LayerType": "Relu", "Inputs": [tensor], "Outputs": [tensor]}
    Path("layers.json").write_text(json.dumps({"Layers": [layer]}))
    assert run(["check", "--layer-info", "layers.json"]) in (0, 1)
    assert run(["report", "layers.json", "-o", "page.html"]) == 0
    assert "</html>" in Path("page.html").read_text(encoding="utf-8")
    assert "Traceback" not in capsys.readouterr().err


# Shapes.


@pytest.mark.parametrize(
    "shape", ["x:²,16,8,8", "x:" + "9" * 5000, "x:٣,16,8,8", "x:1,16,8,+8", "x:0"]
)
def test_sizes_in_other_digits(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(["plan", "net.onnx", "--target", "tensorrt:sm80", "--shape", shape], capsys)
    assert "is not NAME:D,D,..." in told


# External weights.


@pytest.mark.parametrize(
    "how", ["up", "absolute", "link", "folder link", "pipe", "device", "short"]
)
def test_external_weights(how: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "secret.bin").write_bytes(bytes(1 << 16))
    model = onnx.load("net.onnx")
    places = {
        "up": "../secret.bin",
        "absolute": str(folder / "secret.bin"),
        "folder link": "l/secret.bin",
    }
    for number, tensor in enumerate(model.graph.initializer):
        if number:
            continue
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", places.get(how, "w.bin")
    inner = folder / "inner"
    if how == "link":
        (inner / "w.bin").symlink_to("../secret.bin")
    elif how == "folder link":
        (inner / "l").symlink_to("..")
    elif how == "short":
        (inner / "w.bin").write_bytes(bytes(3))
    elif how in ("pipe", "device"):
        strange(inner / "w.bin", how)
    (inner / "m.onnx").write_bytes(model.SerializeToString())
    for words in (
        ["plan", "inner/m.onnx", "--target", "tensorrt:sm80"],
        ["check", "inner/m.onnx", "--no-compile"],
        ["fix", "inner/m.onnx", "-o", "f.onnx", "--target", "tensorrt:sm80"],
        ["compare", "net.onnx", "inner/m.onnx", "--data", "random"],
    ):
        refused(words, capsys)


# Full disks.

WRITERS: dict[str, list[str]] = {
    "model": [*QUANTIZE, "--calib", "random"],
    "plan": ["plan", "net.onnx", "--target", "tensorrt:sm80", "--plan-out", "plan.json"],
    "page": ["report", "net.onnx", "--target", "tensorrt:sm80", "-o", "page.html"],
    "engine": ["compile", "net.onnx", "--target", "onnxruntime:cpu", "-o", "net.ort"],
    "repository": ["triton", "net.onnx", "--out", "models", "--device", "cpu"],
}


@pytest.mark.parametrize("limit", [0, 200])
@pytest.mark.parametrize("writer", list(WRITERS))
def test_a_full_disk_leaves_nothing_half_written(
    writer: str, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = listed()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        code = run(WRITERS[writer])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().err
    assert code == 2 and "cannot be written" in said and "Traceback" not in said, said
    assert listed() == before


def test_no_room_for_temporary_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    told = refused(["profile", "net.onnx", "--runs", "1"], capsys)
    assert "No such file or directory" in told


@pytest.mark.parametrize("place", ["/proc/x.onnx", "/dev/full", "net.onnx/x.onnx", "/sys/x.onnx"])
def test_places_that_cannot_be_written(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [place if word == "out.onnx" else word for word in QUANTIZE]
    refused([*words, "--calib", "random"], capsys)
