"""``fuseq plan``: what would be quantized, what not and why, and the engine predicted; no data."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from fuseq.cli.choices import json_option, model_argument, placement_options, quantize_options
from fuseq.cli.console import print_json, print_notes, print_table, progress
from fuseq.cli.places import check_places
from fuseq.planning import plan
from fuseq.report.numbers import engine_numbers
from fuseq.report.terminal import engine_table, plan_table
from fuseq.targets.base import Engine


@click.command("plan")
@model_argument
@placement_options
@click.option("-o", "--plan-out", type=click.Path(), help="Write the plan as JSON.")
@click.option("--all", "every", is_flag=True, help="One row a region, not one a reason.")
@json_option
def plan_command(
    model: str, plan_out: str | None, every: bool, as_json: bool, **values: Any
) -> None:
    """Print the plan for MODEL without data: what is quantized, what is not, and why.

    Example: fuseq plan model.onnx --format fp8 --target tensorrt-rtx:sm89
    """
    check_places([model], {"--plan-out": plan_out})
    options = quantize_options(values)
    with progress(quiet=as_json) as report:
        planned = plan(model, options, report)
    if plan_out:
        planned.plan.save(plan_out)
    rows: tuple[tuple[str, Engine | None], ...] = (
        (planned.plan.precision, planned.float_engine),
        (planned.plan.format, planned.trial.engine if planned.trial else None),
    )
    shown = [(name, engine) for name, engine in rows if engine is not None]
    if as_json:
        print_json(
            {
                "plan": dataclasses.asdict(planned.plan),
                "engines": {name: engine_numbers(engine) for name, engine in shown},
                "notes": list(planned.notes),
            }
        )
        return
    print_table(plan_table(planned.plan, every))
    if shown:
        known = "predicted" if planned.plan.measurement is None else "measured"
        print_table(engine_table(shown, f"{known} for {planned.plan.target}"))
    print_notes(list(planned.notes))
