"""Documents for tests of the page: small, complete, and one whose every string is hostile."""

from __future__ import annotations

import dataclasses
from typing import Any

from fuseq.report.document import (
    Document,
    EngineRow,
    FileRow,
    FindingRow,
    GraphNode,
    GraphRow,
    GraphTensor,
    KernelRow,
    LayerRow,
    ModuleRow,
    TensorRow,
    TimingRow,
)
from fuseq.report.document_closeness import ComparisonRow, MetricRow, OutputRow, TensorErrorRow

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
    "\"'&\x1b[31m\x00\u202e{{7*7}}"
)
"""Markup, quotes, an escape sequence, a null and a bidi override: all may stand in an ONNX name."""


def kernel(
    name: str, kind: str, precision: str, us: float | None, nodes: tuple[str, ...],
    measured_us: float | None = None,
) -> KernelRow:  # fmt: skip
    """A kernel that reads ``name_in`` and writes ``name_out``."""
    alone = kind in ("quantize", "dequantize", "cast")
    return KernelRow(
        name, kind, "kgen", "" if alone else precision, precision, alone,
        (TensorRow(f"{name}_in", (8, 64), precision, 512),),
        (TensorRow(f"{name}_out", (8, 64), precision, 1024),),
        4096, 1536, 3_000_000, us, measured_us, nodes, "encoder.layer0", ("model.py:7 in forward",),
    )  # fmt: skip


def engine(
    name: str, label: str, kernels: tuple[KernelRow, ...], uncertainty: float | None = 0.2
) -> EngineRow:
    """An engine whose sums are those of its kernels."""
    predicted = [k.predicted_us for k in kernels if k.predicted_us is not None]
    measured = [k.measured_us for k in kernels if k.measured_us is not None]
    return EngineRow(
        name, label, "tensorrt-rtx:sm89", False, "fp16", "", f"{name}.onnx", 18_697_276, "",
        9_300_111, kernels, sum(k.alone for k in kernels), sum(k.activation_bytes for k in kernels),
        sum(k.weights_bytes for k in kernels), sum(predicted) if predicted else None,
        sum(measured) if measured else None, uncertainty, 0.75, "trtexec --onnx=model.onnx",
    )  # fmt: skip


FLOAT = engine(
    "float",
    "FP16",
    (
        kernel("conv_f", "convolution", "fp16", 30.25, ("conv", "relu")),
        kernel("gemm_f", "gemm", "fp16", 12.125, ("fc",)),
    ),
)
QUANTIZED = engine(
    "quantized",
    "INT8",
    (
        kernel("q0", "quantize", "fp16", 4.0625, ("x_q",)),
        kernel("conv_q", "convolution", "int8", 15.5, ("x_dq", "conv", "relu")),
        kernel("gemm_q", "gemm", "int8", 6.75, ("fc",)),
    ),
)


def _node(name: str, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], at: int | None) -> GraphNode:  # fmt: skip
    return GraphNode(name, op, inputs, outputs, "int8", "encoder.layer0", "model.py:7", at, 64)


GRAPH = GraphRow(
    "quantized",
    (
        _node("x_q", "QuantizeLinear", ("x",), ("x8",), 0),
        _node("x_dq", "DequantizeLinear", ("x8",), ("xf",), 1),
        _node("conv", "Conv", ("xf",), ("c",), 1),
        _node("relu", "Relu", ("c",), ("r",), 1),
        _node("fc", "Gemm", ("r",), ("y",), 2),
    ),
    (
        GraphTensor("x", ("N", 3, 8, 8), "fp32", None),
        GraphTensor("x8", (8, 3, 8, 8), "int8", 1536, (0.0123, 0.0123), 1),
        GraphTensor("xf", (8, 3, 8, 8), "fp16", 3072, (0.0123, 0.0123), 1),
        GraphTensor("c", (8, 4, 8, 8), "fp16", 4096),
        GraphTensor("r", (8, 4, 8, 8), "fp16", 4096),
        GraphTensor("y", (8, 10), "fp16", 160),
    ),
    ("x",),
    ("y",),
)
_FINDING = FindingRow(
    "FQ101", "lone-quantizer", "FQ101-lone-quantizer.md", "A Q or DQ runs alone.", "warning", "x_q",
    "x8", "encoder", "model.py:7", "a kernel only quantizes", "run `fuseq fix`", "unsafe", 4.0625,
    False, 1536, True, "tensorrt-rtx:sm89",
)  # fmt: skip
_OUTPUT = OutputRow(
    "logits", "logits", "classes", (8, 10), 64, False, 31.7301, 0.99966, 0.9981, 0.3301, 0.0201,
    0.02607, 0.984375, 1.0, None, 0,
)  # fmt: skip


def _error(name: str, relative: float, jump: bool) -> TensorErrorRow:
    return TensorErrorRow(
        name, name, "name", "Conv", "conv", "encoder.layer0", "model.py:7", (8, 4), False, 41.5,
        0.9999, 0.11, 0.01, relative, relative / 3, jump, 0,
    )  # fmt: skip


def _module(path: str, us: float) -> ModuleRow:
    depth = path.count(".") + 1 if path else 0
    return ModuleRow(path, depth, 2 * us, us, False, 3, 2, 1, "c", 0.0101, 39.9)


DOCUMENT = Document(
    command="deploy",
    fuseq="0.1.0",
    title="net.onnx, INT8 for tensorrt-rtx:sm89",
    created="2026-01-02T03:04:05Z",
    model="net.onnx",
    target="tensorrt-rtx:sm89",
    gpu="L40S",
    batch=8,
    shapes=(("x", (8, 3, 8, 8)),),
    options=(("--format", "int8"),),
    engines=(FLOAT, QUANTIZED),
    layers=(
        LayerRow("conv", "conv block", "Conv", "encoder", "model.py:7", True, "int8", "int8", "quantized"),
        LayerRow("deform", "conv block", "Conv", "encoder", "model.py:9", False, "fp16", "fp16",
                 "float: deformable attention has no int8 kernel"),
    ),
    findings=(_FINDING, dataclasses.replace(_FINDING, code="FQ501", rule="slower-than-float", node="")),
    comparisons=(
        ComparisonRow("float", "quantized", "64 photos", 64, "onnxruntime:cpu", (_OUTPUT,),
                      (_error("c", 0.0011, False), _error("r", 0.0313, True)), "r",
                      "30 times what its inputs carry", (MetricRow("my:metric", 0.751, 0.7487),)),
    ),
    timings=(
        TimingRow("float", "latency", "cost model", False, 8, median_ms=0.042375, speedup=1.0),
        TimingRow("quantized", "latency", "cost model", False, 8, median_ms=0.0263125, speedup=1.61045),
    ),
    modules=(_module("", 26.3125), _module("encoder", 20.5), _module("encoder.layer0", 20.25), _module("head", 6.75)),
    graphs=(GRAPH,),
    files=(FileRow("model", "out/model.onnx", 5_000_001, "ab" * 32),),
    notes=("calibrated on 64 photos",),
    missing=("no GPU here: latency is predicted.",),
)  # fmt: skip


def hostile(row: Any, keep: frozenset[str] = frozenset()) -> Any:
    """The same document with :data:`HOSTILE` appended to every string that a stranger can choose."""
    fixed = keep | {"command", "severity", "fix_kind", "kind", "matched", "schema", "code"}
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        changed = {
            field.name: getattr(row, field.name)
            if field.name in fixed
            else hostile(getattr(row, field.name))
            for field in dataclasses.fields(row)
        }
        return type(row)(**changed)
    if isinstance(row, tuple):
        return tuple(hostile(item) for item in row)
    return row + HOSTILE if isinstance(row, str) else row
