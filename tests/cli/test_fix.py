"""``fuseq fix`` on the command line: table, JSON, files, errors in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from fuseq.calibration.scales import Scales
from fuseq.cli.main import run
from fuseq.model import load, save
from fuseq.placement.plan import Plan
from tests.graphs import from_text, named, normal
from tests.same_graph import signature

TARGET = ["--target", "tensorrt:sm89", "--batch", "1"]


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    """One convolution with UINT8 activations around 128 and an INT32 bias behind DequantizeLinear."""
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s = {0.02}, uint8 z = {128}, float t = {0.01}> {
              q = QuantizeLinear(x, s, z)
              d = DequantizeLinear(q, s, z)
              e = DequantizeLinear(w, t)
              b = DequantizeLinear(bi, bs)
              y = Conv <kernel_shape = [1, 1]> (d, e, b)
            }""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            bi=np.arange(16, dtype=np.int32),
            bs=np.full(1, 2e-4, np.float32),
        )
    )
    file = tmp_path / "quantized.onnx"
    save(model, file)
    return file


def test_it_prints_each_change_with_its_reason(
    quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fixed.onnx"
    assert run(["fix", str(quantized), "-o", str(out), "--policy", "full", *TARGET, "--all"]) == 0
    printed = capsys.readouterr()
    words = " ".join(printed.out.split())
    assert "kept" in words and "removed" in words and "bias" in words
    assert "the file as it is does not compile" in " ".join(printed.err.split())
    stored = load(out).graph.initializers["x_scale"].const_value
    assert stored is not None and stored.numpy() == np.float16(0.02)


def test_json_plan_and_scales(
    quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan, scales = (tmp_path / name for name in ("f.onnx", "p.json", "s.safetensors"))
    arguments = ["fix", str(quantized), "-o", str(out), "--policy", "full", *TARGET, "--json"]
    assert run([*arguments, "--plan-out", str(plan), "--scales-out", str(scales)]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["counts"] == {"removed": 1, "kept": 2}
    kept = {c["tensor"]: c["after"] for c in numbers["changes"] if c["action"] == "kept"}
    assert kept == {"x": float(np.float16(0.02)), "w": float(np.float16(0.01))}
    assert set(numbers["engines"]) == {"float", "fixed"}
    assert numbers["output_bytes"] == out.stat().st_size
    assert [t.tensor for t in Plan.load(plan).tensors] == ["x", "w"]
    assert Scales.load(scales)["x"].scale == np.float32(np.float16(0.02))


def test_keep_placement_and_a_second_run(quantized: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    assert run(["fix", str(quantized), "-o", str(once), "--keep-placement", *TARGET]) == 0
    assert run(["fix", str(once), "-o", str(twice), "--keep-placement", *TARGET]) == 0
    assert signature(load(once)) == signature(load(twice))
    assert once.read_bytes() == twice.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "fp8", "--target", "tensorrt:sm80"], "has no fp8 tensor cores"),
        (["--target", "toaster:sm80"], "unknown compiler"),
        (["--calib", "nowhere.npz", *TARGET], "nowhere.npz"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    quantized: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    out = tmp_path / "out.onnx"
    assert run(["fix", str(quantized), "-o", str(out), *arguments]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("error: ") and words in error
    assert not out.exists()


def test_the_input_is_never_overwritten(
    quantized: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = quantized.read_bytes()
    assert run(["fix", str(quantized), "-o", str(quantized), *TARGET]) == 2
    assert "the input is never overwritten" in " ".join(capsys.readouterr().err.split())
    assert quantized.read_bytes() == before


def test_a_file_that_is_not_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "no.onnx"
    file.write_text("hello")
    assert run(["fix", str(file), "-o", str(tmp_path / "out.onnx"), *TARGET]) == 2
    assert "not a readable ONNX file" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "d = Relu(nowhere) y = Relu(d)",
            "reads 'nowhere', which no node, input or initializer makes",
        ),
        ("d = Add(x, e) e = Relu(d) y = Relu(x)", "nodes wait for each other ('n_d', 'n_e')"),
    ],
)
def test_a_graph_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, words: str
) -> None:
    head = '<ir_version: 10, opset_import: ["" : 21]> g (float[1, 8] x) => (float[1, 8] y)'
    proto = parser.parse_model(f"{head} {{ {body} }}")
    for node in proto.graph.node:
        node.name = f"n_{node.output[0]}"
    file = tmp_path / "broken.onnx"
    file.write_bytes(proto.SerializeToString())
    assert run(["fix", str(file), "-o", str(tmp_path / "out.onnx"), *TARGET]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.onnx").exists()


def test_a_float_model_has_nothing_to_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[1, 8] x) => (float[1, 8] y) { y = MatMul(x, w) }""",
            w=normal(8, 8),
        )
    )
    file, out = tmp_path / "float.onnx", tmp_path / "out.onnx"
    save(model, file)
    assert run(["fix", str(file), "-o", str(out), *TARGET]) == 0
    assert "nothing to fix" in " ".join(capsys.readouterr().err.split())
    assert signature(load(out)) == signature(model)
