"""`fuseq compile`: kernels, the engine file, ranges of shapes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from fuseq.passes.typing import set_precision
from tests.graphs import from_text, named, normal


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[N, 8] x) => (float[N, 16] y) { m = MatMul(x, w)  y = Relu(m) }""",
            w=normal(8, 16),
        )
    )
    set_precision(model, "fp16")
    ir.save(model, tmp_path / "d.onnx")
    return tmp_path / "d.onnx"


def test_json_has_the_kernels_and_the_engine_is_written(capsys, dynamic) -> None:  # type: ignore[no-untyped-def]
    engine = dynamic.with_suffix(".engine")
    assert run(["compile", str(dynamic), "--batch", "4", "-o", str(engine), "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["engine_bytes"] == engine.stat().st_size
    assert numbers["kernels"] == len(numbers["kernel_list"])
    (product,) = [k for k in numbers["kernel_list"] if k["type"] == "gemm"]
    assert product["flops"] == 2 * 4 * 8 * 16
    assert "n_m" in product["nodes"]


def test_a_range_of_shapes_compiles(capsys, dynamic) -> None:  # type: ignore[no-untyped-def]
    ranges = ["--min-shape", "x:1,8", "--shape", "x:4,8", "--max-shape", "x:32,8"]
    assert run(["compile", str(dynamic), *ranges, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] >= 1


def test_shapes_out_of_order_are_refused(capsys, dynamic) -> None:  # type: ignore[no-untyped-def]
    ranges = ["--min-shape", "x:8,8", "--shape", "x:4,8"]
    assert run(["compile", str(dynamic), *ranges]) == 2
    assert "not in order" in capsys.readouterr().err


def test_an_fp32_graph_with_two_types_says_which_node(capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[1, 4] x, float16[1, 4] z) => (float[1, 4] y) { y = Add(x, z) }"""
    )
    ir.save(model, tmp_path / "two.onnx")
    assert run(["compile", str(tmp_path / "two.onnx")]) == 2
    assert "Float and Half" in capsys.readouterr().err


def test_a_target_without_engine_files_refuses_output(capsys, dynamic) -> None:  # type: ignore[no-untyped-def]
    engine = dynamic.with_suffix(".engine")
    assert run(["compile", str(dynamic), "--target", "tensorrt:sm80", "-o", str(engine)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "tensorrt:sm80 makes no engine file; leave out --output" in message
    assert not engine.exists()


def test_a_batch_beyond_any_compiler_is_one_sentence(capsys, dynamic) -> None:  # type: ignore[no-untyped-def]
    for target in ("tensorrt-rtx:sm89", "tensorrt:sm80"):
        assert run(["compile", str(dynamic), "--target", target, "--batch", str(10**22)]) == 2
        message = " ".join(capsys.readouterr().err.split())
        assert message.startswith(f"error: input 'x' of shape [{10**22}, 8] is too large")


def test_a_pipe_gets_whole_names_and_a_narrow_terminal_gets_its_width(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "encoder.layers.3.self_attn.out_projection.with.a.long.name"
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 8] x) => (float[N, 16] y) { m = MatMul(x, w)  y = Relu(m) }""",
        w=normal(8, 16),
    )
    model.graph[0].name = name
    ir.save(model, tmp_path / "long.onnx")
    command = ["compile", str(tmp_path / "long.onnx"), "--target", "tensorrt:sm80"]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(command) == 0
    told = capsys.readouterr().out
    assert name in told and "…" not in told
    monkeypatch.setenv("COLUMNS", "60")
    assert run(command) == 0
    told = capsys.readouterr().out
    assert name not in told and max(map(len, told.splitlines())) <= 60
