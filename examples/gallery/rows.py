"""One model to several targets and formats: what each compiler made of it, and what it still knows.

Every model of the gallery goes through :func:`rows_of`; a target that refuses keeps its row, with its
words. Times of GPUs are predicted by fuseq's cost model, those of the CPU measured, taking turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fuseq
from fuseq.evaluate.running import run_batches
from fuseq.placement.plan import Plan
from fuseq.targets.base import Engine, KernelType

Feeds = dict[str, np.ndarray]
CPU, RTX = "onnxruntime:cpu", "tensorrt-rtx:sm89"
PAIR_TYPES = (KernelType.QUANTIZE, KernelType.DEQUANTIZE)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to quantize to; ``policy`` "full" quantizes all that the target runs in the format."""

    name: str
    target: str
    format: str
    policy: str = "pays"


CHOICES = (
    Choice("INT8", RTX, "int8"),
    Choice("INT8 all", RTX, "int8", "full"),
    Choice("FP8", RTX, "fp8"),
    Choice("FP8 all", RTX, "fp8", "full"),
    Choice("INT8", CPU, "int8"),
)


@dataclasses.dataclass(frozen=True)
class Model:
    """A float model and its task.

    Attributes:
        name: For files and tables.
        file: ONNX, float.
        shapes: What the engines are compiled for, by input name.
        calib: Batches to calibrate with, by input name.
        judging: Other batches.
        metric: What the percentage is, in words.
        judge: The outputs of all judging batches, each by output name, to percent.
        choices: Rows of the table.
        carried: Input by which each batch gets what the batch before gave, to the output's name.
    """

    name: str
    file: Path
    shapes: Mapping[str, tuple[int, ...]]
    calib: Sequence[Feeds]
    judging: Sequence[Feeds]
    metric: str
    judge: Callable[[list[Feeds]], float]
    choices: tuple[Choice, ...] = CHOICES
    carried: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table; None where a number does not apply.

    Attributes:
        target: ``compiler:device``.
        name: FP32, INT8, INT8 all ...
        percent: The model's metric.
        regions: Quantized layers of all that patterns found, as ``12 of 40``.
        kernels: Kernels of the engine.
        pairs: Kernels that only quantize or dequantize.
        time_us: Predicted (GPU) or measured (CPU) for one batch, in microseconds.
        float_us: The same of the float model.
        error: The compiler's or fuseq's own words, where it failed.
        left_float: Reasons of the regions that stay float, with their counts.
    """

    target: str
    name: str
    percent: float | None = None
    regions: str = ""
    kernels: int | None = None
    pairs: int | None = None
    time_us: float | None = None
    float_us: float | None = None
    error: str = ""
    left_float: tuple[tuple[str, int], ...] = ()


def outputs_of(
    file: Path,
    batches: Sequence[Feeds],
    *,
    as_written: bool,
    carried: Mapping[str, str] | None = None,
) -> list[Feeds]:
    """Outputs by name of each batch, on ONNX Runtime's CPU provider.

    Args:
        file: Float or Q/DQ, made for any target.
        batches: Inputs by name.
        as_written: Every Q and DQ computed as the file says, the rest in FP32: how a file made for a
            GPU is judged. False: what ONNX Runtime makes of it, integer kernels included.
        carried: Inputs that take the output of the batch before, from the second batch on.
    """
    outputs: list[Feeds] = []

    def feeds() -> Iterator[Feeds]:
        for batch in batches:
            state = carried.items() if carried and outputs else ()
            yield {**batch, **{name: outputs[-1][output] for name, output in state}}

    for one in run_batches(file, feeds(), optimized=not as_written, in_fp32=as_written, threads=2):
        outputs.append(one)  # the next batch reads it
    return outputs


def answers_of(model: Model, file: Path, *, as_written: bool) -> float:
    """The model's metric of one file, in percent."""
    return model.judge(
        outputs_of(file, model.judging, as_written=as_written, carried=model.carried)
    )


def rows_of(model: Model, out: Path, say: Callable[[str], None]) -> list[Row]:
    """The float row, then one for each choice; quantized files go to ``out``."""
    exact = answers_of(model, model.file, as_written=False)
    say(f"{model.name}: FP32, {exact:.2f} % {model.metric}")
    rows = [Row("", "FP32", exact)]
    for choice in model.choices:
        try:
            row = _row(model, choice, out, exact)
        except fuseq.FuseqError as error:
            row = Row(choice.target, choice.name, error=str(error))
        rows.append(row)
        say(f"{model.name}: {choice.name} for {choice.target}, {row.error or row.percent}")
    return rows


def _row(model: Model, choice: Choice, out: Path, exact: float) -> Row:
    file = out / f"{model.name}.{choice.target}.{choice.name}.onnx".replace(" ", "-").replace(
        ":", "-"
    )
    result = fuseq.quantize(
        model.file,
        file,
        calib=model.calib,
        options=fuseq.QuantizeOptions(
            format=choice.format, target=choice.target, policy=choice.policy, shapes=model.shapes
        ),
    )
    percent = exact
    if result.plan.tensors:
        percent = answers_of(model, file, as_written=choice.target != CPU)
    engine, before = result.engine, result.float_engine
    assert engine is not None and before is not None  # both targets compile here
    time_us, float_us = times_us(result.plan, engine, before)
    return Row(
        choice.target, choice.name, percent, quantized_regions(result.plan), len(engine.kernels),
        sum(kernel.type in PAIR_TYPES for kernel in engine.kernels), time_us, float_us,
        left_float=left_float(result.plan),
    )  # fmt: skip


def times_us(plan: Plan, engine: Engine, before: Engine) -> tuple[float, float]:
    """Microseconds of the quantized and of the float engine: measured where the plan was, else predicted."""
    if plan.measurement is None:
        return engine.predicted_us, before.predicted_us
    times = {one.name: one.median_ms * 1000 for one in plan.measurement.candidates}
    return times[plan.measurement.chosen], times["float"]


def quantized_regions(plan: Plan) -> str:
    """``12 of 40``: regions that the plan quantizes, of all that its patterns found."""
    return f"{sum(region.quantized for region in plan.regions)} of {len(plan.regions)}"


def left_float(plan: Plan) -> tuple[tuple[str, int], ...]:
    """Why regions stay float, commonest first, with the operator's pattern and the count."""
    counts: dict[str, int] = {}
    for region in plan.regions:
        if not region.quantized:
            why = f"{region.pattern}: {region.reason.removeprefix('float: ')}"
            counts[why] = counts.get(why, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: -item[1]))


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as JSON's types."""
    return [dataclasses.asdict(row) for row in rows]
