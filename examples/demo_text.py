"""The MiniLM sentence encoder to FP8, for a GPU of compute capability 8.9."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import numpy as np

import fuseq
from demo_data import read_sentences, tokens
from demo_models import minilm_tokenizer
from demo_steps import Steps
from demo_table import Row
from demo_task import Task

TITLE = "MiniLM sentence encoder, 64 texts of 128 tokens, FP8, calibrated on 63 sentences"
TARGET = "tensorrt-rtx:sm89"
SHAPE = (64, 128)


def text_rows(
    float_file: Path, exported: Future[None], out: Path, steps: Steps
) -> tuple[list[Row], list[str]]:
    """Rows of the table, and sentences to print under it; ``float_file`` is there once ``exported``."""
    with steps.step("export MiniLM to ONNX"):
        exported.result()
    calibration, judging = read_sentences()
    tokenizer = minilm_tokenizer()
    calibration_file = out / "sentences.npz"
    np.savez(calibration_file, allow_pickle=False, **tokens(calibration, tokenizer))
    options = fuseq.QuantizeOptions(
        format="fp8", target=TARGET, shapes={"input_ids": SHAPE, "attention_mask": SHAPE}
    )
    batches = [tokens(judging[i : i + 21], tokenizer) for i in range(0, len(judging), 21)]
    task = Task(float_file, calibration_file, batches, options, steps)
    exact = task.outputs(float_file, "FP32", optimized=True)
    half_file, half = task.quantize("FP16", exclude=("*",))
    file, result = task.quantize("FP8")
    assert half.engine is not None and result.engine is not None
    rows = [
        task.row(name, one, engine, task.outputs(one, name, optimized=name == "FP16"), exact)
        for name, one, engine in (("FP16", half_file, half.engine), ("FP8", file, result.engine))
    ]
    engine_file = file.with_suffix(".engine")
    with steps.step("write the FP8 engine"):
        engine = fuseq.compile_model(file, TARGET, shapes=options.shapes, keep_plan=True)
        engine_file.write_bytes(engine.plan_bytes or b"")
    return rows, [
        _what_pays(result, rows),
        _agreement(rows[-1], len(judging)),
        f"{engine_file} is the engine itself, for TensorRT-RTX on a GPU of capability 8.9.",
    ]


def _what_pays(result: fuseq.Quantized, rows: list[Row]) -> str:
    chosen = [region.pattern for region in result.plan.regions if region.quantized]
    before, after = (row.engine.predicted_us for row in rows)
    return (
        f"{chosen.count('linear')} linear layers and {chosen.count('attention')} attentions run in "
        f"FP8, predicted {before / after:.2f} times as fast as FP16."
    )


def _agreement(row: Row, count: int) -> str:
    same = round(row.close.nearest * count)
    return (
        f"Asked which of {count - 1} other sentences is nearest, the FP8 encoder answers as the "
        f"float one does for {same} of {count}."
    )
