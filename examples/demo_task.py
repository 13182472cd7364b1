"""One model on its way to several engines: what the demo does for every model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fuseq
from demo_steps import Steps
from demo_table import Row
from fuseq.evaluate.closeness import closeness
from fuseq.evaluate.running import run_all
from fuseq.targets.base import Engine


@dataclasses.dataclass(frozen=True)
class Task:
    """A float model, its data, and what all its engines have in common.

    Attributes:
        float_file: ONNX file as the exporter wrote it; quantized files lie beside it.
        calib: Anything that ``fuseq.quantize`` takes as calibration data.
        judging: Other batches, by input name.
        options: Batch size, shapes, image preset.
        steps: Where progress is shown.
    """

    float_file: Path
    calib: Any
    judging: Sequence[dict[str, np.ndarray]]
    options: fuseq.QuantizeOptions
    steps: Steps

    def quantize(self, name: str, **choices: Any) -> tuple[Path, fuseq.Quantized]:
        """Quantize with ``choices`` (fields of ``fuseq.QuantizeOptions``); the file and the result."""
        options = dataclasses.replace(self.options, **choices)
        tags = (options.target.replace(":", "-"), name.lower().replace(" ", "-"))
        file = self.float_file.with_suffix(f".{'.'.join(tags)}.onnx")
        with self.steps.step(f"{name} for {options.target}") as report:
            result = fuseq.quantize(
                self.float_file, file, calib=self.calib, options=options, report=report
            )
        return file, result

    def outputs(
        self, file: Path, what: str, *, optimized: bool, in_fp32: bool = False
    ) -> np.ndarray:
        """What the model answers to the data that judges it: [N, ...], by ONNX Runtime on this CPU.

        A quantized file made for a GPU is not optimized for the CPU: each Q and DQ node is computed
        as it is written; with ``in_fp32`` everything else in FP32, in half the time that FP16 takes.
        """
        batches = self.steps.counted(f"judge {what}", self.judging)
        return run_all(file, batches, optimized=optimized, in_fp32=in_fp32)

    def row(
        self, name: str, file: Path, engine: Engine, outputs: np.ndarray, exact: np.ndarray
    ) -> Row:
        """A row of the table; ``exact`` are the outputs of the float model."""
        return Row(name, file.stat().st_size, engine, closeness(exact, outputs))
