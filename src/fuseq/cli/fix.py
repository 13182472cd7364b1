"""``fuseq fix``: mend any tool's quantized model, with the scales that it had."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from fuseq.cli.choices import (
    batch_option,
    gpu_option,
    json_option,
    method_option,
    model_argument,
    parse_shapes,
    shape_option,
    target_option,
)
from fuseq.cli.console import print_json, print_notes, print_table, progress
from fuseq.cli.places import check_places
from fuseq.fix_report import ACTIONS, Change
from fuseq.fixing import Fixed, fix
from fuseq.formats import USER_FORMATS
from fuseq.options import PRECISIONS, QuantizeOptions
from fuseq.report.numbers import engine_numbers
from fuseq.report.terminal import engine_table, safe


@click.command("fix")
@model_argument
@click.option("-o", "--output", "out", required=True, type=click.Path(), help="ONNX to write.")
@target_option
@gpu_option
@click.option(
    "--format", "fmt", type=click.Choice(("auto", *USER_FORMATS)), default="auto",
    show_default=True, help="auto: the file's own, or int8 where the target lacks it.",
)  # fmt: skip
@click.option("--precision", type=click.Choice(PRECISIONS), help="Type of what stays float.")
@click.option(
    "--policy", type=click.Choice(("pays", "full")), default="pays", show_default=True,
    help="pays: only what gains, as predicted for the compiled engine or, on onnxruntime:cpu, "
    "as timed; full: all that the target runs.",
)  # fmt: skip
@click.option(
    "--keep-placement", is_flag=True, help="Change nothing but what is illegal for the target."
)
@click.option("--calib", help="Calibration data for tensors that the file has no scale for.")
@click.option("--preset", help="How calibration images become inputs.")
@method_option
@click.option("--limit", type=int, help="Use at most this many calibration samples.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Keep float; may repeat.")
@click.option("--include", multiple=True, metavar="GLOB", help="Quantize only these.")
@batch_option
@shape_option
@click.option("--plan-out", type=click.Path(), help="Write the plan as JSON.")
@click.option("--scales-out", type=click.Path(), help="Write the scales as safetensors.")
@click.option("--all", "every", is_flag=True, help="One row a tensor, not one a reason.")
@json_option
def fix_command(
    model: str,
    out: str,
    keep_placement: bool,
    calib: str | None,
    plan_out: str | None,
    scales_out: str | None,
    every: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Strip MODEL's quantization, plan it anew for the target, and apply the scales it had.

    Example: fuseq fix modelopt.onnx -o fixed.onnx --target tensorrt-rtx:sm89
    """
    check_places([model], {"--output": out, "--plan-out": plan_out, "--scales-out": scales_out})
    with progress(quiet=as_json) as report:
        result = fix(
            model, out, options=_options(values), fmt=values["fmt"],
            keep_placement=keep_placement, calib=calib, report=report,
        )  # fmt: skip
    if plan_out:
        result.plan.save(plan_out)
    if scales_out:
        result.scales.save(scales_out)
    if as_json:
        print_json(_numbers(result, model, out))
    else:
        _print_result(result, Path(model).name, every)
    print_notes(list(result.notes))


def _options(values: dict[str, Any]) -> QuantizeOptions:
    return QuantizeOptions(
        target=values["target"],
        gpu=values["gpu"],
        precision=values["precision"],
        policy=values["policy"],
        method=values["method"],
        exclude=tuple(values["exclude"]),
        include=tuple(values["include"]),
        batch=values["batch"],
        shapes=parse_shapes(values["shapes"]),
        preset=values["preset"],
        limit=values["limit"],
    )


def _print_result(result: Fixed, name: str, every: bool) -> None:
    print_table(_all_changes(result.changes) if every else _changes_by_reason(result.changes))
    rows = (
        (name, result.before),
        (f"{result.plan.precision}, no Q/DQ", result.float_engine),
        ("fixed", result.engine),
    )
    shown = [(label, engine) for label, engine in rows if engine is not None]
    if shown:
        print_table(engine_table(shown, f"compiled for {result.plan.target}"))


def _changes_by_reason(changes: tuple[Change, ...]) -> Table:
    """One row for changes of one action, kind and reason, with how many and the first of them."""
    counts = Counter((c.action, c.kind, _gist(c)) for c in changes)
    first = {
        (c.action, c.kind, _gist(c)): c.tensor or ", ".join(c.nodes) for c in reversed(changes)
    }
    table = Table(title="changes", title_justify="left")
    for heading in ("change", "of", "reason", "for example"):
        table.add_column(heading, overflow="fold")
    table.add_column("tensors", justify="right")
    for key, count in sorted(counts.items(), key=lambda item: ACTIONS.index(item[0][0])):
        action, kind, gist = key
        table.add_row(action, kind, safe(gist, 300), safe(first[key], 60), str(count))
    return table


def _all_changes(changes: tuple[Change, ...]) -> Table:
    table = Table(title="changes", title_justify="left")
    for heading in ("change", "of", "tensor", "scale", "becomes", "reason"):
        table.add_column(heading, overflow="fold")
    for change in sorted(changes, key=lambda each: ACTIONS.index(each.action)):
        table.add_row(
            change.action,
            change.kind,
            safe(change.tensor),
            "" if change.before is None else f"{change.before:.6g}",
            "" if change.after is None else f"{change.after:.6g}",
            safe(change.reason, 400),
        )
    return table


def _gist(change: Change) -> str:
    """A reason without the names and numbers that differ from tensor to tensor."""
    if "(predicted)" in change.reason:
        return "float: predicted slower when quantized"
    reason = change.reason
    for name in sorted((change.tensor, *change.nodes), key=len, reverse=True):
        if name:
            reason = reason.replace(name, "...")
    return reason


def _numbers(result: Fixed, model: str, out: str) -> dict[str, Any]:
    engines = {"before": result.before, "float": result.float_engine, "fixed": result.engine}
    return {
        "input_bytes": Path(model).stat().st_size,
        "output_bytes": Path(out).stat().st_size,
        "changes": [dataclasses.asdict(change) for change in result.changes],
        "counts": dict(Counter(change.action for change in result.changes)),
        "plan": dataclasses.asdict(result.plan),
        "engines": {k: engine_numbers(e) for k, e in engines.items() if e is not None},
        "notes": list(result.notes),
    }
