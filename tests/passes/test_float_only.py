"""A model that is quantized already is refused by every command that begins with a float one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import fuseq
from fuseq.cli.main import run
from fuseq.passes.float_only import quantization_nodes
from tests.graphs import conv_net, from_text, normal
from tests.quantized_nets import naive_block

HEAD = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "trt" : 1]>"""
SPELLINGS = {
    "QLinearMatMul": HEAD
    + """ g (uint8[2, 4] a) => (uint8[2, 4] y)
        <float s = {0.1}, uint8 z = {0}, int8[4, 4] w, int8 wz = {0}>
        { y = QLinearMatMul (a, s, z, w, s, wz, s, z) }""",
    "DynamicQuantizeLinear": HEAD
    + """ g (float[2, 4] a) => (uint8[2, 4] y) { y, s, z = DynamicQuantizeLinear (a) }""",
    "TRT_FP8DequantizeLinear": HEAD
    + """ g (uint8[2, 4] a) => (float[2, 4] y) <float s = {0.1}>
        { y = trt.TRT_FP8DequantizeLinear (a, s) }""",
    "QGemm": HEAD
    + """ g (uint8[2, 4] a) => (float[2, 4] y)
        <float s = {0.1}, uint8 z = {0}, int8[4, 4] w, int8 wz = {0}>
        { y = com.microsoft.QGemm (a, s, z, w, s, wz) }""",
}


@pytest.mark.parametrize("operator", SPELLINGS)
def test_every_spelling_is_found(operator: str) -> None:
    weights = {"w": np.ones((4, 4), np.int8)} if "int8[4, 4] w" in SPELLINGS[operator] else {}
    model = from_text(SPELLINGS[operator], **weights)
    assert [node.op_type for node in quantization_nodes(model.graph)] == [operator]


def test_a_float_model_has_none() -> None:
    assert quantization_nodes(conv_net().graph) == []


@pytest.mark.parametrize(
    "command",
    [
        ["plan"],
        ["quantize", "-o", "out.onnx", "--calib", "random"],
        ["deploy", "--out", "folder", "--calib", "random"],
        ["search", "-o", "out.onnx", "--calib", "random"],
        ["sensitivity", "--calib", "random"],
    ],
    ids=lambda command: command[0],
)
def test_a_quantized_file_is_sent_to_fix(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ir.save(naive_block(), "q.onnx")
    assert run([command[0], "q.onnx", *command[1:], "--target", "tensorrt:sm80"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(
        "error: q.onnx: is quantized already (12 quantization nodes, the first is "
    )
    assert "`fuseq fix`" in said and "\n" not in said
    assert [file.name for file in tmp_path.iterdir()] == ["q.onnx"]


def test_a_quantized_model_is_refused_in_python() -> None:
    data = [{"x": normal(1, 16, 8, 8)}]
    with pytest.raises(fuseq.FuseqError, match="quantized already"):
        fuseq.quantize(naive_block(), calib=data)
    with pytest.raises(fuseq.FuseqError, match="quantized already"):
        fuseq.plan(naive_block())


def test_what_fuseq_writes_is_not_quantized_again(tmp_path: Path) -> None:
    data = [{"x": normal(1, 16, 8, 8, scale=1.0)}]
    options = fuseq.QuantizeOptions(target="tensorrt:sm89", policy="full", batch=1)
    fuseq.quantize(conv_net(), tmp_path / "q.onnx", calib=data, options=options)
    with pytest.raises(fuseq.FuseqError, match="quantized already"):
        fuseq.quantize(tmp_path / "q.onnx", calib=data, options=options)
    assert fuseq.fix(tmp_path / "q.onnx", options=options).plan.tensors
