"""EfficientNet-Lite0 to INT8: for this machine's CPU, measured, and for two GPUs, predicted."""

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
from fuseq.targets.onnxruntime_cpu import OnnxRuntimeCpu

TITLE = "EfficientNet-Lite0, batch 8, 224 x 224, INT8, calibrated on 16 crops of real photos"
CPU = "onnxruntime:cpu"
GPUS = ("tensorrt-rtx:sm80", "tensorrt-rtx:sm89")
TIMING_SECONDS = 8.0
"""In which the float and the quantized model take turns on the CPU."""


def image_rows(out: Path, steps: Steps) -> tuple[list[Row], list[str]]:
    """Rows of the table, and sentences to print under it."""
    task = _task(out, steps)
    exact = task.outputs(task.float_file, "FP32", optimized=True)
    rows, sentences = _on_this_cpu(task, exact)
    for more_rows, sentence in (_on_gpus(task, exact), _everything(task, exact)):
        rows += more_rows
        sentences.append(sentence)
    return rows, sentences


def _task(out: Path, steps: Steps) -> Task:
    float_file = out / "efficientnet_lite0.onnx"
    with steps.step("export EfficientNet-Lite0 to ONNX"):
        if not float_file.exists():
            export_efficientnet(float_file)
    with steps.step("cut 16 crops to calibrate, 208 to judge"):
        calibration, judging = write_crops(out / "photos")
    # EfficientNet-Lite was trained on pixels from -1 to 1, as Inception was.
    options = fuseq.QuantizeOptions(format="int8", batch=8, preset="inception")
    photos = open_source(judging, fuseq.load(float_file), preset=image_preset("inception"))
    return Task(float_file, calibration, photos, options, steps)


def _on_this_cpu(task: Task, exact: np.ndarray) -> tuple[list[Row], list[str]]:
    batch = task.options.batch
    file, _ = task.quantize("INT8", target=CPU)
    with task.steps.step("time FP32 and INT8 on this CPU, taking turns"):
        feeds = {name: array[:batch] for name, array in next(iter(task.judging)).items()}
        files = {"FP32": task.float_file, "INT8": file}
        times = OnnxRuntimeCpu().time(files, feeds, seconds=TIMING_SECONDS)
    rows = []
    for time in times:
        file = files[time.name]
        engine = fuseq.compile_model(file, CPU, batch=batch)
        answers = exact if time.name == "FP32" else task.outputs(file, "INT8", optimized=True)
        row = task.row(time.name, file, engine, answers, exact)
        rows.append(dataclasses.replace(row, cpu_ms=time.median_ms))
    return rows, [
        f"{CPU}: INT8 is measured {times[1].speedup:.2f} times as fast as FP32 on this machine "
        f"(median of {times[1].rounds} rounds in which they took turns)."
    ]


def _on_gpus(task: Task, exact: np.ndarray) -> tuple[list[Row], str]:
    """FP16 beside INT8 where it pays."""
    half_file, _ = task.quantize("FP16", target=GPUS[0], exclude=("*",))
    half = task.outputs(half_file, "FP16", optimized=False)
    rows, counts = [], []
    for target in GPUS:
        file, result = task.quantize("INT8", target=target)
        assert result.float_engine is not None and result.engine is not None
        count = sum(region.quantized for region in result.plan.regions)
        answers = task.outputs(file, "INT8", optimized=False) if count else half
        rows.append(task.row("FP16", half_file, result.float_engine, half, exact))
        rows.append(task.row("INT8", file, result.engine, answers, exact))
        counts.append(f"{count} of {len(result.plan.regions)} layers on {target}")
    return rows, (
        f"INT8 is predicted to pay for {' and '.join(counts)}; the others stay FP16, and the plan "
        "says why. This compiler never fuses the next layer's Q into a convolution, so a quantized "
        "convolution often moves more bytes than an FP16 one."
    )


def _everything(task: Task, exact: np.ndarray) -> tuple[list[Row], str]:
    """What it would cost to quantize all that the compiler runs in INT8."""
    file, result = task.quantize("INT8 all", target=GPUS[-1], policy="full")
    assert result.float_engine is not None and result.engine is not None
    answers = task.outputs(file, "INT8 all", optimized=False)
    times = result.engine.predicted_us / result.float_engine.predicted_us
    return [task.row("INT8 all", file, result.engine, answers, exact)], (
        f"INT8 all: with --policy full everything that {GPUS[-1]} runs in INT8 is INT8, predicted "
        f"to take {times:.2f} times as long as FP16."
    )
