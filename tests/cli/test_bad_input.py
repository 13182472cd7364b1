"""Bad input ends in one sentence that names what and what to do, exit code 2, and no file."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from tests.graphs import conv_net, from_text, named, normal

SHAPE = (4, 16, 8, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ir.save(conv_net(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", normal(*SHAPE, scale=1.0))
    return tmp_path


def _refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """Run quantize, expect exit code 2, one line of error, and nothing new in the folder."""
    before = sorted(folder.rglob("*"))
    assert run(["quantize", *arguments]) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, error
    assert "Traceback" not in error
    assert sorted(folder.rglob("*")) == before
    return lines[0]


def _quantize(folder: Path, model: str = "net.onnx", calib: str = "data.npy") -> list[str]:
    return [str(folder / model), "-o", str(folder / "out.onnx"), "--calib", str(folder / calib)]


def test_a_missing_file(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    assert "does not exist" in _refused(capsys, folder, *_quantize(folder, "other.onnx"))


@pytest.mark.parametrize("content", [b"", b"not onnx at all", b"\x00" * 64, b"\x08\x07\x12\x02"])
def test_a_file_that_is_not_onnx(capsys, folder, content) -> None:  # type: ignore[no-untyped-def]
    (folder / "bad.onnx").write_bytes(content)
    said = _refused(capsys, folder, *_quantize(folder, "bad.onnx"))
    assert "bad.onnx" in said and "ONNX" in said


def test_a_truncated_file(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    whole = (folder / "net.onnx").read_bytes()
    (folder / "bad.onnx").write_bytes(whole[: len(whole) // 2])
    assert "truncated" in _refused(capsys, folder, *_quantize(folder, "bad.onnx"))


def _external(folder: Path, location: str) -> None:
    model = onnx.load(folder / "net.onnx")
    onnx.save(
        model, folder / "ext.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    model = onnx.load(folder / "ext.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (folder / "ext.onnx").write_bytes(model.SerializeToString())


def test_external_data_that_is_missing(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    _external(folder, "gone.bin")
    said = _refused(capsys, folder, *_quantize(folder, "ext.onnx"))
    assert "'gone.bin'" in said and "missing" in said


def test_external_data_that_is_too_short(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    _external(folder, "w.bin")
    (folder / "w.bin").write_bytes(b"1234")
    said = _refused(capsys, folder, *_quantize(folder, "ext.onnx"))
    assert "truncated" in said and "the file has 4" in said


@pytest.mark.parametrize("location", ["../../../etc/passwd", "/etc/passwd"])
def test_external_data_outside_the_folder(capsys, folder, location) -> None:  # type: ignore[no-untyped-def]
    _external(folder, location)
    said = _refused(capsys, folder, *_quantize(folder, "ext.onnx"))
    assert "outside the model's folder" in said


def test_a_symlink_out_of_the_folder(capsys, folder, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    elsewhere.write_bytes(b"0" * 100_000)
    _external(folder, "link.bin")
    (folder / "link.bin").symlink_to(elsewhere)
    said = _refused(capsys, folder, *_quantize(folder, "ext.onnx"))
    assert "outside the model's folder" in said


def _data(folder: Path, **arrays: np.ndarray) -> None:
    np.savez(folder / "bad.npz", **arrays)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"other": normal(*SHAPE)}, "'other'"),
        ({"x": normal(4, 16, 8)}, "x"),
        ({"x": normal(4, 16, 9, 8)}, "9"),
        ({"x": np.full(SHAPE, np.nan, np.float32)}, "NaN"),
        ({"x": np.zeros((0, 16, 8, 8), np.float32)}, "empty"),
        ({"x": np.zeros(SHAPE, np.float32)}, "0"),
        ({"x": np.full(SHAPE, "text")}, "x"),
        ({"x": normal(*SHAPE).astype(np.complex64)}, "complex64"),
    ],
)
def test_calibration_arrays_that_do_not_fit(capsys, folder, arrays, said) -> None:  # type: ignore[no-untyped-def]
    _data(folder, **arrays)
    assert said in _refused(capsys, folder, *_quantize(folder, calib="bad.npz"))


def test_calibration_data_that_is_not_there(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    assert "gone.npz: no such" in _refused(capsys, folder, *_quantize(folder, calib="gone.npz"))


def test_a_pickle_named_npy_is_not_loaded(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    np.save(folder / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    said = _refused(capsys, folder, *_quantize(folder, calib="evil.npy"))
    assert "evil.npy" in said


def test_fp8_for_sm80(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    options = ["--format", "fp8", "--target", "tensorrt-rtx:sm80"]
    assert "sm89" in _refused(capsys, folder, *_quantize(folder), *options)


def test_fp8_on_a_cpu(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    options = ["--format", "fp8", "--target", "onnxruntime:cpu"]
    assert "--format int8" in _refused(capsys, folder, *_quantize(folder), *options)


def test_an_output_in_a_folder_that_does_not_exist(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    arguments = _quantize(folder)
    arguments[2] = str(folder / "no" / "out.onnx")
    assert "does not exist" in _refused(capsys, folder, *arguments)


def test_the_input_is_never_the_output(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    arguments = _quantize(folder)
    arguments[2] = str(folder / "net.onnx")
    before = (folder / "net.onnx").read_bytes()
    assert "is the input" in _refused(capsys, folder, *arguments)
    assert (folder / "net.onnx").read_bytes() == before


def test_a_device_is_never_replaced(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    device = folder / "pipe"
    os.mkfifo(device)
    arguments = _quantize(folder)
    arguments[2] = str(device)
    assert "not a regular file" in _refused(capsys, folder, *arguments)
    assert device.is_fifo()


def test_a_disk_that_is_full(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        said = _refused(capsys, folder, *_quantize(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "out.onnx" in said and "Nothing was written" in said


def test_a_shape_that_the_model_cannot_take(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    said = _refused(capsys, folder, *_quantize(folder), "--shape", "x:1,3,8,8")
    assert "does not fit" in said


def test_an_unknown_input_in_shape(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    said = _refused(capsys, folder, *_quantize(folder), "--shape", "image:1,16,8,8")
    assert "'image'" in said and "['x']" in said


@pytest.mark.parametrize(
    ("option", "value"),
    [("--batch", "0"), ("--limit", "0"), ("--gpu", "GTX 480"), ("--preset", "nothing")],
)
def test_an_option_value_that_is_not_allowed(capsys, folder, option, value) -> None:  # type: ignore[no-untyped-def]
    assert value in _refused(capsys, folder, *_quantize(folder), option, value)


def test_a_plan_of_another_model(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    other = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 4] a) => (float[1, 4] b) { b = MatMul(a, m) }""",
            m=normal(4, 4),
        )
    )
    ir.save(other, folder / "other.onnx")
    plan = folder / "plan.json"
    assert run(["plan", str(folder / "other.onnx"), "--policy", "full", "-o", str(plan)]) == 0
    said = _refused(capsys, folder, *_quantize(folder), "--plan-in", str(plan))
    assert "another architecture" in said


def test_a_non_float_model_input_is_kept_as_it_is(folder) -> None:  # type: ignore[no-untyped-def]
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (int64[2, 3] ids) => (float[2, 3, 8] y) {
              e = Gather(table, ids)
              y = MatMul(e, w)
            }""",
            table=normal(10, 8, scale=1.0),
            w=normal(8, 8),
        )
    )
    ir.save(model, folder / "ids.onnx")
    np.savez(folder / "ids.npz", ids=np.arange(6, dtype=np.int64).reshape(2, 3))
    arguments = _quantize(folder, "ids.onnx", "ids.npz")
    assert run(["quantize", *arguments, "--policy", "full"]) == 0
    assert onnx.load(folder / "out.onnx").graph.input[0].type.tensor_type.elem_type == 7


def test_text_from_a_model_cannot_write_to_the_terminal(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    (folder / "bad\x1b[31m.onnx").write_bytes(b"")
    run(["quantize", *_quantize(folder, "bad\x1b[31m.onnx")])
    assert "\x1b[31m" not in capsys.readouterr().err


def test_bad_usage_exits_2(capsys, folder) -> None:  # type: ignore[no-untyped-def]
    assert run(["quantize"]) == 2
    assert run(["quantize", "a", "--no-such-option"]) == 2
    assert run(["no-such-command"]) == 2
