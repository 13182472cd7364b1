"""``fuseq deploy``: the whole way from a float model to engines, numbers and a report."""

from __future__ import annotations

import json
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
from fuseq.cli.console import errors, output, print_notes, print_table, progress
from fuseq.deployment.options import DeployOptions
from fuseq.deployment.running import PAGE, REPORT, Deployed, deploy
from fuseq.placement.plan import Plan
from fuseq.report.summary import engines_table, reasons_table, sentences


@click.command("deploy")
@model_argument
@click.option("--out", type=click.Path(), help="Folder to fill. [default: MODEL-FORMAT-TARGET]")
@calib_option
@click.option("--data", help="Data that closeness is measured on. [default: the calibration data]")
@click.option(
    "--samples",
    type=int,
    default=64,
    show_default=True,
    help="Samples that closeness is measured on.",
)
@preset_option
@method_option
@click.option("--limit", type=int, help="Calibrate with at most this many samples.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random data.")
@accuracy_options
@placement_options
@click.option("--plan-in", type=click.Path(), help="Apply this plan instead of planning.")
@click.option(
    "--outputs-are", type=click.Choice(("classes", "embedding", "values")),
    help="What outputs [N, D] hold. [default: by name and length]",
)  # fmt: skip
@click.option("--metric", metavar="MODULE:FUNCTION", help="Your own metric of the outputs.")
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Time for measuring.")
@json_option
@click.pass_context
def deploy_command(
    context: click.Context,
    /,
    model: str,
    out: str | None,
    calib: str,
    plan_in: str | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Quantize MODEL, compile it in float and quantized, check, compare, measure, and report.

    Finished stages are kept in the folder: the same command again continues where it was stopped,
    and repeats only what has changed. Exit code 0: done; 1: findings, or no engine could be made.

    Example: fuseq deploy model.onnx --calib photos/ --format fp8 --target tensorrt-rtx:sm89
    """
    options = DeployOptions(
        quantize=quantize_options(
            values,
            method=values["method"],
            limit=values["limit"],
            seed=values["seed"],
            preset=values["preset"],
        ),
        plan=Plan.load(plan_in) if plan_in else None,
        data=values["data"],
        samples=values["samples"],
        outputs_are=values["outputs_are"],
        metric=values["metric"],
        seconds=values["seconds"],
    )
    with progress(quiet=as_json) as report:
        result = deploy(model, out, calib=calib, options=options, report=report)
    if as_json:
        print(
            json.dumps(json.loads((result.folder / REPORT).read_text(encoding="utf-8")), indent=1)
        )
    else:
        print_result(result)
    print_notes(list(result.document.notes))
    context.exit(result.exit_code)


def print_result(result: Deployed) -> None:
    """The tables, what they mean, and where the files are."""
    document = result.document
    if document.engines:
        print_table(engines_table(document))
    if document.layers:
        print_table(reasons_table(document.layers))
    for sentence in sentences(document):
        output.print(sentence, soft_wrap=True, highlight=False)
    output.print(
        f"Files: {result.folder}/, first {PAGE}.", markup=False, highlight=False, soft_wrap=True
    )
    if result.kept:
        errors.print(f"kept from before: {', '.join(result.kept)}", markup=False, highlight=False)
