"""``fuseq quantize``: the main job."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from fuseq.cli.choices import (
    accuracy_options,
    calib_option,
    json_option,
    method_option,
    model_argument,
    placement_options,
    preset_option,
    quantize_options,
)
from fuseq.cli.console import print_json, print_notes, print_table, progress
from fuseq.cli.places import check_places
from fuseq.placement.plan import Plan
from fuseq.quantizing import Quantized, quantize
from fuseq.report.numbers import engine_numbers
from fuseq.report.terminal import engine_table, plan_table


@click.command("quantize")
@model_argument
@click.option("-o", "--output", "out", required=True, type=click.Path(), help="ONNX to write.")
@calib_option
@preset_option
@method_option
@click.option("--limit", type=int, help="Use at most this many samples.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random data.")
@accuracy_options
@placement_options
@click.option("--plan-in", type=click.Path(), help="Apply this plan instead of planning.")
@click.option("--plan-out", type=click.Path(), help="Write the plan as JSON.")
@click.option("--scales-out", type=click.Path(), help="Write the scales as safetensors.")
@json_option
def quantize_command(
    model: str,
    out: str,
    calib: str,
    plan_in: str | None,
    plan_out: str | None,
    scales_out: str | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Quantize MODEL so that every Q/DQ pair pays for itself on the target.

    Example: fuseq quantize model.onnx -o model.fp8.onnx --format fp8
    --target tensorrt-rtx:sm89 --calib photos/ --preset imagenet
    """
    options = quantize_options(
        values,
        method=values["method"],
        limit=values["limit"],
        seed=values["seed"],
        preset=values["preset"],
    )
    check_places(
        [model, calib, plan_in],
        {"--output": out, "--plan-out": plan_out, "--scales-out": scales_out},
    )
    given = Plan.load(plan_in) if plan_in else None
    with progress(quiet=as_json) as report:
        result = quantize(model, out, calib=calib, options=options, plan=given, report=report)
    if plan_out:
        result.plan.save(plan_out)
    if scales_out:
        result.scales.save(scales_out)
    if as_json:
        print_json(_numbers(result, model, out))
    else:
        _print_result(result)
    print_notes(list(result.notes))


def _print_result(result: Quantized) -> None:
    print_table(plan_table(result.plan))
    rows = [(result.plan.precision, result.float_engine)]
    if result.plan.tensors:
        rows.append((result.plan.format, result.engine))
    shown = [(name, engine) for name, engine in rows if engine is not None]
    if shown:
        print_table(engine_table(shown, f"compiled for {result.plan.target}"))


def _numbers(result: Quantized, model: str, out: str) -> dict[str, Any]:
    engines = {"float": result.float_engine}
    if result.plan.tensors:
        engines["quantized"] = result.engine
    return {
        "input_bytes": Path(model).stat().st_size,
        "output_bytes": Path(out).stat().st_size,
        "plan": dataclasses.asdict(result.plan),
        "engines": {k: engine_numbers(e) for k, e in engines.items() if e is not None},
        "notes": list(result.notes),
    }
