"""EfficientNet-Lite0 to INT8: for this machine's CPU, measured, and for GPUs, predicted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

import fuseq
from demo_data import write_crops
from demo_models import export_efficientnet
from demo_steps import Steps
from demo_table import Row
from demo_task import Task
from fuseq.calibration.image_presets import image_preset
from fuseq.calibration.sources import open_source
from fuseq.placement.plan import Measurement

TITLE = "EfficientNet-Lite0, batch 8, 224 x 224, INT8, calibrated on 16 crops of real photos"
CPU = "onnxruntime:cpu"
RTX_80, RTX_89 = "tensorrt-rtx:sm80", "tensorrt-rtx:sm89"
TENSORRT = "tensorrt:sm80"
"""Full TensorRT, simulated by the fusions that its documentation describes: no compiler runs."""
JUDGED = 16
"""Photos judged at a time."""


def image_rows(out: Path, steps: Steps) -> tuple[list[Row], list[str]]:
    """Rows of the table, and sentences to print under it."""
    task = _task(out, steps)
    exact = task.outputs(task.float_file, "FP32", optimized=True)
    rows, sentences = _on_this_cpu(task, exact)
    half_file, _ = task.quantize("FP16", target=RTX_89, exclude=("*",))
    half = task.outputs(half_file, "FP16", optimized=True)
    for target, say in ((RTX_80, None), (RTX_89, _say_rtx), (TENSORRT, _say_tensorrt)):
        file, result = task.quantize("INT8", target=target)
        assert result.float_engine is not None and result.engine is not None
        answers = _judged(task, file, "INT8") if result.plan.tensors else half
        rows.append(task.row("FP16", half_file, result.float_engine, half, exact))
        rows.append(task.row("INT8", file, result.engine, answers, exact))
        if target == RTX_89:
            rows.append(_everything(task, exact))
        if say is not None:
            sentences.append(say(rows))
    return rows, sentences


def _task(out: Path, steps: Steps) -> Task:
    float_file = out / "efficientnet_lite0.onnx"
    with steps.step("export EfficientNet-Lite0 to ONNX"):
        export_efficientnet(float_file)
    with steps.step("cut 16 crops to calibrate, 208 to judge"):
        calibration, judging = write_crops(out / "photos")
    # EfficientNet-Lite was trained on pixels from -1 to 1, as Inception was.
    options = fuseq.QuantizeOptions(format="int8", batch=8, preset="inception")
    crops = open_source(judging, fuseq.load(float_file), preset=image_preset("inception"))
    photos = np.concatenate([one["input"] for one in crops])
    batches = [{"input": photos[i : i + JUDGED]} for i in range(0, len(photos), JUDGED)]
    return Task(float_file, calibration, batches, options, steps)


def _on_this_cpu(task: Task, exact: np.ndarray) -> tuple[list[Row], list[str]]:
    """FP32, what was measured fastest, and INT8 everywhere; one measurement, in which they took turns."""
    file, pays = task.quantize("INT8", target=CPU)
    full_file, full = task.quantize("INT8 all", target=CPU, policy="full")
    measured = pays.plan.measurement
    assert measured is not None and pays.float_engine and pays.engine and full.engine
    everywhere = task.outputs(full_file, "INT8 all", optimized=True)
    if not pays.plan.tensors:
        answers = exact
    elif measured.chosen == "everything":
        answers = everywhere
    else:
        answers = task.outputs(file, "INT8", optimized=True)
    ms = {candidate.name: candidate.median_ms for candidate in measured.candidates}
    rows = [
        dataclasses.replace(task.row(name, path, engine, outputs, exact), cpu_ms=ms[candidate])
        for name, path, engine, outputs, candidate in (
            ("FP32", task.float_file, pays.float_engine, exact, "float"),
            ("INT8", file, pays.engine, answers, measured.chosen),
            ("INT8 all", full_file, full.engine, everywhere, "everything"),
        )
    ]
    return rows, [_say_cpu(rows, measured, pays)]


def _say_cpu(rows: list[Row], measured: Measurement, pays: fuseq.Quantized) -> str:
    count = sum(region.quantized for region in pays.plan.regions)
    speedups = {candidate.name: candidate.speedup for candidate in measured.candidates}
    gain = f" ({speedups[measured.chosen]:.2f} times as fast as FP32)" if count else ""
    smaller = rows[0].file_bytes / rows[2].file_bytes
    return (
        f"{CPU}: measured here, INT8 pays for {count} of {len(pays.plan.regions)} layers{gain}. INT8 "
        f"everywhere is {speedups['everything']:.2f} times as fast as FP32, in a file {smaller:.1f} "
        f"times smaller. ({measured.machine}; the models took turns, {measured.rounds} rounds.)"
    )


def _judged(task: Task, file: Path, what: str) -> np.ndarray:
    """Answers of a file made for a GPU: Q and DQ as written, products in FP32."""
    return task.outputs(file, what, optimized=False, in_fp32=True)


def _everything(task: Task, exact: np.ndarray) -> Row:
    """What it would cost to quantize all that the compiler runs in INT8."""
    file, result = task.quantize("INT8 all", target=RTX_89, policy="full")
    assert result.engine is not None
    answers = _judged(task, file, "INT8 all")
    return task.row("INT8 all", file, result.engine, answers, exact)


def _say_rtx(rows: list[Row]) -> str:
    half, _, full = (row.engine for row in rows[-3:])
    return (
        "tensorrt-rtx never fuses the Q of the next layer into a convolution, so a quantized "
        "convolution often moves more bytes than an FP16 one: INT8 everywhere (INT8 all) is "
        f"predicted to take {full.predicted_us / half.predicted_us:.2f} times as long as FP16. What "
        "does not pay stays FP16, and the plan says why."
    )


def _say_tensorrt(rows: list[Row]) -> str:
    half, quantized = (row.engine.predicted_us for row in rows[-2:])
    return (
        f"{TENSORRT} is simulated: no compiler runs here. Full TensorRT fuses that Q, so INT8 is "
        f"predicted {half / quantized:.2f} times as fast as FP16."
    )
