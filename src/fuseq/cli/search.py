"""``fuseq search``: the planner's plan, improved by compiled trials."""

from __future__ import annotations

import dataclasses
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
from fuseq.cli.console import output, print_json, print_notes, print_table, progress
from fuseq.cli.places import check_places
from fuseq.report.numbers import engine_numbers
from fuseq.report.scatter import scatter_text
from fuseq.report.terminal import engine_table
from fuseq.searching import DEFAULT_SECONDS, Searched, SearchOptions, search
from fuseq.trials.constraint import constraint_from
from fuseq.trials.curve import check_curve, curve_numbers, curve_picture, write_curve
from fuseq.trials.objective import OBJECTIVES
from fuseq.trials.step_table import step_table


@click.command("search")
@model_argument
@click.option("-o", "--output", "out", type=click.Path(), help="ONNX to write.")
@calib_option
@preset_option
@method_option
@click.option("--limit", type=int, help="Use at most this many samples.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@accuracy_options
@placement_options
@click.option(
    "--objective", type=click.Choice(OBJECTIVES), default="latency", show_default=True,
    help="What is made small: predicted latency, bytes moved, or bytes of the engine.",
)  # fmt: skip
@click.option(
    "--budget", type=float, metavar="SECONDS",
    help=f"Time of trials; {DEFAULT_SECONDS:.0f} where neither this nor --trials is given.",
)  # fmt: skip
@click.option("--trials", type=int, help="Number of distinct plans that may be compiled.")
@click.option(
    "--executor", default="processes", show_default=True,
    help="Where trials run: serial, processes, processes:N, dask://host:port.",
)  # fmt: skip
@click.option(
    "--cache", type=click.Path(), help="Folder of trials; default .fuseq-cache beside the output."
)
@click.option("--min-cosine", type=float, help="Least mean cosine to the float model's output.")
@click.option("--min-top1", type=float, help="Least share of samples with the float model's class.")
@click.option("--metric", metavar="MODULE:FUNCTION", help="Gets all outputs, returns a number.")
@click.option("--max-drop", type=float, help="How far --metric may fall below the float model's.")
@click.option("--data", help="Samples to judge accuracy on; the calibration data by default.")
@click.option(
    "--curve-out", type=click.Path(), help="Write accuracy against the objective: .svg or .json."
)
@click.option("--plan-out", type=click.Path(), help="Write the best plan as JSON.")
@click.option("--scales-out", type=click.Path(), help="Write the scales as safetensors.")
@json_option
def search_command(
    model: str,
    out: str | None,
    calib: str,
    plan_out: str | None,
    scales_out: str | None,
    curve_out: str | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Search the fastest plan for MODEL by compiling; it never ends worse than it began.

    Example: fuseq search model.onnx -o model.int8.onnx --target tensorrt-rtx:sm89
    --calib photos/ --preset imagenet --budget 180
    """
    options = quantize_options(
        values, method=values["method"], limit=values["limit"], preset=values["preset"]
    )
    how = SearchOptions(
        objective=values["objective"],
        seconds=values["budget"],
        trials=values["trials"],
        seed=values["seed"],
        executor=values["executor"],
        cache=values["cache"],
        constraint=constraint_from(
            values["min_cosine"], values["min_top1"], values["metric"], values["max_drop"]
        ),
    )
    check_curve(curve_out, how.constraint)
    check_places(
        [model, calib],
        {
            "--output": out,
            "--plan-out": plan_out,
            "--scales-out": scales_out,
            "--curve-out": curve_out,
        },
    )
    with progress(quiet=False) as report:
        result = search(
            model, out, calib=calib, data=values["data"], options=options, how=how, report=report
        )
    if plan_out:
        result.plan.save(plan_out)
    if scales_out:
        result.scales.save(scales_out)
    if curve_out and result.tradeoff is not None:
        write_curve(result.tradeoff, how.objective, curve_out)
    if as_json:
        print_json(_numbers(result))
    else:
        _print_result(result, how.objective)
    print_notes(list(result.notes))


def _print_result(result: Searched, objective: str) -> None:
    if result.steps:
        print_table(step_table(result.steps, objective))
    else:
        output.print("0 moves accepted")
    if result.tradeoff is not None:
        picture = curve_picture(result.tradeoff, objective)
        output.print(scatter_text(picture), markup=False, highlight=False)
    rows = [
        (result.plan.precision, result.float_engine),
        ("rules", result.rule_engine),
        ("search", result.engine),
    ]
    print_table(engine_table(rows, f"predicted for {result.plan.target}"))


def _numbers(result: Searched) -> dict[str, Any]:
    engines = {
        "float": result.float_engine,
        "rules": result.rule_engine,
        "search": result.engine,
    }
    return {
        "plan": dataclasses.asdict(result.plan),
        "engines": {name: engine_numbers(engine) for name, engine in engines.items()},
        "steps": [dataclasses.asdict(step) for step in result.steps],
        "curve": [[round(seconds, 3), value] for seconds, value in result.curve],
        "tradeoff": None if result.tradeoff is None else curve_numbers(result.tradeoff),
        "trials": result.trials,
        "search_seconds": round(result.seconds, 3),
        "notes": list(result.notes),
    }
