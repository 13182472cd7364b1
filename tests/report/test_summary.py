"""Sentences and tables of a document: what is counted together, what is said of a slower engine."""

from __future__ import annotations

import dataclasses

from rich.console import Console

from fuseq.report.document import Document, EngineRow, KernelRow, LayerRow, TimingRow
from fuseq.report.summary import engines_table, reasons_table, sentences


def layer(name: str, quantized: bool, reason: str) -> LayerRow:
    precision = "fp8" if quantized else "fp16"
    return LayerRow(name, "linear", "MatMul", "", "", quantized, precision, precision, reason)


def engine(name: str, label: str, us: float, alone: int) -> EngineRow:
    kernels = tuple(
        KernelRow(f"k{i}", "quantize" if i < alone else "gemm", "", "", "fp16", i < alone, (), (),
                  1, 1, 0, us / 4, None, (), "", ())
        for i in range(4)
    )  # fmt: skip
    number_format = "" if name == "float" else "fp8"
    return EngineRow(name, label, "tensorrt-rtx:sm89", False, "fp16", number_format, "", 2_000_000, "",
                     3_000_000, kernels, alone, 4_000_000, 4, us, None, 0.2, 0.1)  # fmt: skip


def lines(table: object) -> list[str]:
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(table)
    return [line.strip() for line in capture.get().splitlines()]


DOCUMENT = Document(
    "deploy", "0", "net.onnx",
    engines=(engine("float", "FP16", 100.0, 0), engine("quantized", "FP8", 125.0, 3)),
    timings=(
        TimingRow("float", "latency", "cost model", False, median_ms=0.1, speedup=1.0),
        TimingRow("quantized", "latency", "cost model", False, median_ms=0.125, speedup=0.8),
    ),
)  # fmt: skip


def test_reasons_that_differ_in_a_name_are_counted_together() -> None:
    rows = [
        layer("a", True, "quantized: 3.1 us faster (predicted)"),
        layer("b", True, "quantized: 0.4 us faster (predicted)"),
        layer("c", False, "float: getitem_18 is always 0 in calibration"),
        layer("d", False, "float: getitem_33 is always 0 in calibration"),
    ]
    found = [line.split() for line in lines(reasons_table(rows))[2:4]]
    assert found == [
        ["2", "linear", "fp8", "quantized:", "predicted", "faster"],
        [
            "2",
            "linear",
            "fp16",
            "float:",
            "its",
            "tensor",
            "is",
            "always",
            "0",
            "in",
            "calibration",
        ],
    ]


def test_a_slower_engine_and_lone_kernels_are_said() -> None:
    said = sentences(DOCUMENT)
    assert said[0] == (
        "The FP8 engine is predicted 0.80 times as fast as the FP16 engine; a predicted time is good to 20 %."
    )
    assert said[1] == "3 of 4 kernels of the FP8 engine only quantize, dequantize or change type."
    assert said[2] == "fuseq check finds nothing."


def test_a_measured_time_is_never_mixed_with_a_predicted_one() -> None:
    measured = TimingRow("quantized", "host", "onnxruntime:cpu", True, median_ms=7.0, speedup=1.5)
    document = dataclasses.replace(DOCUMENT, timings=(measured, *DOCUMENT.timings))
    assert sentences(document)[0] == (
        "The FP8 engine is measured by onnxruntime:cpu 1.50 times as fast as the FP16 engine."
    )
    rows = {line.split()[0]: line.split() for line in lines(engines_table(document)) if line}
    assert rows["FP8"] == ["FP8", "2.0", "3.0", "4", "3", "4.0", "125.0", "7.00"]
    assert rows["FP16"] == ["FP16", "2.0", "3.0", "4", "0", "4.0", "100.0"]
