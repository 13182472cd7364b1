"""``fuseq compile``: compile a model as it is and list the kernels."""

from __future__ import annotations

from pathlib import Path

import click

from fuseq.cli.choices import (
    batch_option,
    gpu_option,
    json_option,
    model_argument,
    parse_shapes,
    shape_option,
    target_option,
)
from fuseq.cli.console import print_json, print_notes, print_table, progress
from fuseq.cli.places import check_places
from fuseq.compiling import compile_model
from fuseq.errors import OptionError
from fuseq.model import whole_file
from fuseq.report.numbers import engine_numbers
from fuseq.report.terminal import engine_table, kernel_table


@click.command("compile")
@model_argument
@target_option
@gpu_option
@batch_option
@shape_option
@click.option(
    "--min-shape",
    "minima",
    multiple=True,
    metavar="NAME:D,D,...",
    help="Smallest shape of an input; with --max-shape the engine takes a range of shapes.",
)
@click.option("--max-shape", "maxima", multiple=True, metavar="NAME:D,D,...", help="Largest shape.")
@click.option("-o", "--output", "engine_file", type=click.Path(), help="Write the engine.")
@click.option("--kernels", is_flag=True, help="List every kernel, not the slowest 20.")
@json_option
def compile_command(
    model: str,
    target: str,
    gpu: str | None,
    batch: int,
    shapes: tuple[str, ...],
    minima: tuple[str, ...],
    maxima: tuple[str, ...],
    engine_file: str | None,
    kernels: bool,
    as_json: bool,
) -> None:
    """Compile MODEL for a target, strongly typed, and list what the engine runs.

    Example: fuseq compile model.onnx --target tensorrt-rtx:sm89 -o model.engine
    """
    check_places([model], {"--output": engine_file})
    with progress(quiet=as_json) as report:
        report("compile", 0, None)
        engine = compile_model(
            model, target, gpu=gpu, batch=batch, shapes=parse_shapes(shapes),
            minima=parse_shapes(minima), maxima=parse_shapes(maxima),
            keep_plan=engine_file is not None,
        )  # fmt: skip
    if engine_file is not None:
        if engine.plan_bytes is None:
            raise OptionError(
                f"--output {engine_file}: {target} makes no engine file; leave out --output, or "
                "compile for tensorrt-rtx:smNN or onnxruntime:cpu."
            )
        with whole_file(Path(engine_file)) as beside:
            beside.write_bytes(engine.plan_bytes)
    if as_json:
        print_json({**engine_numbers(engine, kernels=True), "notes": list(engine.notes)})
        return
    print_table(kernel_table(engine, None if kernels else 20))
    print_table(engine_table([(Path(model).name, engine)], f"compiled for {engine.target}"))
    print_notes(list(engine.notes))
