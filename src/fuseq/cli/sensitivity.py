"""``fuseq sensitivity``: what each region's quantization costs in accuracy and saves in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from fuseq.cli.choices import (
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
from fuseq.evaluate.sensitivity import RegionSensitivity, Sensitivity, decibels
from fuseq.model import whole_file
from fuseq.placement.plan import Plan
from fuseq.report.scatter import Dot, Scatter, scatter_svg, scatter_text
from fuseq.report.terminal import safe
from fuseq.sensing import sensitivity


@click.command("sensitivity")
@model_argument
@calib_option
@click.option("--data", help="Samples to compare outputs on; the calibration data by default.")
@preset_option
@method_option
@click.option("--limit", type=int, help="Use at most this many samples.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random data.")
@placement_options
@click.option("--plan-in", type=click.Path(), help="Measure the regions of this plan.")
@click.option(
    "--executor", default="processes", show_default=True,
    help="Where the model runs: serial, processes, processes:N, dask://host:port.",
)  # fmt: skip
@click.option("--cache", type=click.Path(), help="Folder of outputs; default the user's cache.")
@click.option("--plot", type=click.Path(), help="Write error against time saved as .svg.")
@click.option("--top", type=int, default=20, show_default=True, help="Rows to print.")
@json_option
def sensitivity_command(
    model: str,
    calib: str,
    data: str | None,
    plan_in: str | None,
    plot: str | None,
    top: int,
    as_json: bool,
    **values: Any,
) -> None:
    """Rank MODEL's regions by the error that quantizing them brings, beside the time it saves.

    All that the target runs in the format is measured, unless --policy pays or --plan-in says less.

    Example: fuseq sensitivity model.onnx --calib photos/ --preset imagenet --plot error.svg
    """
    if click.get_current_context().get_parameter_source("policy") is ParameterSource.DEFAULT:
        values["policy"] = "full"
    options = quantize_options(
        values,
        method=values["method"],
        limit=values["limit"],
        seed=values["seed"],
        preset=values["preset"],
    )
    check_places([model, calib, plan_in], {"--plot": plot})
    given = Plan.load(plan_in) if plan_in else None
    with progress(quiet=False) as report:
        found = sensitivity(
            model, calib=calib, data=data, options=options, plan=given,
            executor=values["executor"], cache=values["cache"], report=report,
        )  # fmt: skip
    picture = _picture(found, options.format)
    if plot:
        with whole_file(Path(plot)) as beside:
            beside.write_text(scatter_svg(picture), encoding="utf-8")
    if as_json:
        print_json(found.numbers())
    else:
        _print(found, picture, top)
    print_notes(list(found.notes))


def _picture(found: Sensitivity, fmt: str) -> Scatter:
    predicted = any(region.saved_us is not None for region in found.regions)
    dots = tuple(
        Dot(
            float(number) if region.saved_us is None else region.saved_us,
            max(region.alone, region.company),
            region.region,
        )
        for number, region in enumerate(found.regions)
    )
    x_label = "saved, predicted us" if predicted else "rank"
    return Scatter(f"{fmt}: error of each region", x_label, "noise / signal", dots, log_y=True)


def _print(found: Sensitivity, picture: Scatter, top: int) -> None:
    table = Table(title=f"{len(found.regions)} regions, worst first", title_justify="left")
    table.add_column("region", overflow="fold")
    table.add_column("pattern")
    for heading in ("alone dB", "alone", "in company", "saved us (predicted)"):
        table.add_column(heading, justify="right")
    for region in found.regions[:top]:
        table.add_row(*_row(region))
    print_table(table)
    output.print(scatter_text(picture), markup=False, highlight=False)
    output.print(
        f"all together: {decibels(found.whole):.1f} dB, cosine {found.cosine:.5f}, "
        f"{found.samples} samples",
        highlight=False,
    )


def _row(region: RegionSensitivity) -> tuple[str, ...]:
    saved = "-" if region.saved_us is None else f"{region.saved_us:.1f}"
    return (
        safe(region.region), region.pattern, f"{region.alone_db:.1f}", f"{region.alone:.2e}",
        f"{region.company:.2e}", saved,
    )  # fmt: skip
