"""The document survives JSON unchanged, and damaged files end in one sentence that names the field."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from fuseq.errors import ModelError
from fuseq.report import document_json
from fuseq.report.document import (
    Document,
    EngineRow,
    FindingRow,
    GraphNode,
    GraphRow,
    GraphTensor,
    KernelRow,
    ModuleRow,
    TensorRow,
    TimingRow,
)
from fuseq.report.document_closeness import ComparisonRow, MetricRow, OutputRow, TensorErrorRow

_TENSOR = TensorRow("x", (1, 3), "fp8", 3)
_KERNEL = KernelRow(
    "k",
    "gemm",
    "xmma",
    "fp8",
    "fp8",
    False,
    (_TENSOR,),
    (),
    9,
    3,
    18,
    1.25,
    None,
    ("n",),
    "a.b",
    (),
)
_ENGINE = EngineRow(
    "float", "FP16", "tensorrt-rtx:sm89", False, "fp16", "", "m.onnx", 10, "", 20, (_KERNEL,), 0,
    3, 9, 1.25, None, 0.2, 0.5,
)  # fmt: skip
_OUTPUT = OutputRow(
    "y", "y", "classes", (2, 4), 2, False, 30.5, 0.99, 0.98, 0.1, 0.01, 0.03, 1.0, 1.0, None, 0
)
_ERROR = TensorErrorRow(
    "h", "h_q", "provenance", "Relu", "relu", "a", "m.py:3", (2, 3), False, 20.0, 0.9, 0.5, 0.1,
    0.1, None, True, 0,
)  # fmt: skip
_FINDING = FindingRow(
    "FQ101", "lone-quantizer", "FQ101-lone-quantizer.md", "A pair alone.", "warning", "n", "", "",
    "", "message", "fix", "safe", 1.5, False, None, True, "tensorrt-rtx:sm89",
)  # fmt: skip
FULL = Document(
    "deploy", "0.1.0", "<script>", shapes=(("x", (1, 3)),), options=(("--format", "fp8"),),
    engines=(_ENGINE,), findings=(_FINDING,),
    comparisons=(
        ComparisonRow("float", "quantized", "4 images", 4, "onnxruntime:cpu", (_OUTPUT,), (_ERROR,),
                      "h", "because", (MetricRow("m:f", 0.5, None),)),
    ),
    timings=(TimingRow("float", "latency", "cost model", False, median_ms=0.5),),
    modules=(ModuleRow("a", 1, 1.0, None, False, 1, 1, 1, "h", 0.1, 20.0),),
    graphs=(
        GraphRow("float", (GraphNode("n", "MatMul", ("x",), ("y",), "fp8", "", "", 0),),
                 (GraphTensor("x", ("N", 3), "fp8", None, (0.1, 0.2), 3),), ("x",), ("y",)),
    ),
)  # fmt: skip


def test_every_field_survives_the_file(tmp_path: Path) -> None:
    document_json.save(FULL, tmp_path / "report.json")
    assert document_json.load(tmp_path / "report.json") == FULL


def test_not_a_number_is_never_written(tmp_path: Path) -> None:
    broken = dataclasses.replace(
        FULL, modules=(dataclasses.replace(FULL.modules[0], float_us=math.nan),)
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        document_json.save(broken, tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.update(version=2), "version 2, this fuseq reads 1"),
        (lambda data: data.update(schema="other"), "not a fuseq document"),
        (lambda data: data.pop("title"), "field 'title' is missing"),
        (lambda data: data.update(pickle=1), "unknown field 'pickle'"),
        (lambda data: data.update(command="rm"), r"d\.command: 'rm' is not one of deploy"),
        (lambda data: data["engines"][0].update(kernels=3), r"d\.engines\[0\]\.kernels: '3' is not a list"),
        (lambda data: data["engines"][0].update(engine_bytes=True), "'True' is not int"),
        (lambda data: data["engines"][0].update(engine_bytes=1.5), "'1.5' is not int"),
        (lambda data: data["timings"][0].update(measured=0), "'0' is not bool"),
        (lambda data: data.update(shapes=[["x"]]), "is not a list of 2"),
    ],
)  # fmt: skip
def test_damage_is_named(change: object, words: str) -> None:
    data = json.loads(document_json.to_json(FULL))
    change(data)  # type: ignore[operator]
    with pytest.raises(ModelError, match=words):
        document_json.from_json(json.dumps(data), "d")


def test_nan_in_a_file_is_refused() -> None:
    text = document_json.to_json(FULL).replace("0.99", "NaN")
    with pytest.raises(ModelError, match="NaN is no JSON number"):
        document_json.from_json(text, "d")
