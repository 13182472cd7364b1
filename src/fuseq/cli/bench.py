"""``fuseq bench``: time several models on one target in one run."""

from __future__ import annotations

from pathlib import Path

import click

from fuseq.cli.choices import gpu_option, html_option, json_option, parse_shapes, shape_option
from fuseq.cli.console import output, print_json, print_notes, print_table, progress
from fuseq.cli.places import check_places
from fuseq.errors import OptionError
from fuseq.evaluate.bench import BenchOptions, BenchResult, bench
from fuseq.evaluate.bench_loaded import load_times
from fuseq.report.bench import bench_numbers, bench_table
from fuseq.report.bench_document import bench_document
from fuseq.report.html import write_report
from fuseq.targets.trtexec import Timed


@click.command("bench")
@click.argument("models", nargs=-1, type=click.Path(path_type=str))
@click.option(
    "--target", default="onnxruntime:cpu", show_default=True,
    help="compiler:device, for example onnxruntime:cpu or tensorrt-rtx:sm89.",
)  # fmt: skip
@gpu_option
@click.option("--batch", type=int, default=1, show_default=True, help="Size of a dynamic batch.")
@shape_option
@click.option("--warmup", type=float, default=200.0, show_default=True, help="Milliseconds.")
@click.option(
    "--duration", type=float, default=3.0, show_default=True, help="Seconds for each model."
)
@click.option("--iterations", type=int, default=10, show_default=True, help="At least this many.")
@click.option("--streams", type=int, default=1, show_default=True, help="Inferences at a time.")
@click.option("--cuda-graph/--no-cuda-graph", default=True, help="Launch engines as one graph.")
@click.option("--threads", type=int, help="Threads on a CPU; all usable processors by default.")
@click.option(
    "--load-times", "loaded", multiple=True, metavar="[NAME=]FILE",
    help="Times from another machine instead: trtexec --exportTimes or --exportProfile; may repeat.",
)  # fmt: skip
@json_option
@html_option
@click.pass_context
def bench_command(
    context: click.Context,
    models: tuple[str, ...],
    target: str,
    gpu: str | None,
    batch: int,
    shapes: tuple[str, ...],
    warmup: float,
    duration: float,
    iterations: int,
    streams: int,
    cuda_graph: bool,
    threads: int | None,
    loaded: tuple[str, ...],
    as_json: bool,
    html: str | None,
) -> None:
    """Time MODELS (ONNX files or engines) in one run, taking turns; ratios refer to the first.

    Exit code 0: measured; 1: something could only be predicted; 2: a file or option is refused.

    Example: fuseq bench float.onnx int8.onnx --target onnxruntime:cpu --batch 8
    """
    options = BenchOptions(
        target=target, gpu=gpu, batch=batch, shapes=parse_shapes(shapes), threads=threads,
        timed=Timed(warmup, duration, iterations, streams, cuda_graph),
    )  # fmt: skip
    check_places(models, {"--html": html})
    if loaded:
        if models:
            raise OptionError("--load-times reads times of another machine; leave out the models.")
        result = load_times(_loaded(loaded))
    else:
        with progress(quiet=as_json) as report:
            result = bench(_named(models), options, report)
    if html is not None:
        write_report(html, bench_document(result))
    print_result(result, as_json)
    context.exit(result.exit_code)


def print_result(result: BenchResult, as_json: bool) -> None:
    """The table, findings and commands, or one JSON document."""
    if as_json:
        print_json(bench_numbers(result))
        return
    print_table(bench_table(result))
    for finding in result.findings:
        output.print(finding, markup=False, highlight=False, soft_wrap=True)
    for row in result.rows:
        if row.trtexec:
            output.print(row.trtexec, markup=False, highlight=False, soft_wrap=True)
    print_notes([*result.missing, *result.notes])


def _loaded(texts: tuple[str, ...]) -> dict[str, Path]:
    """``NAME=FILE`` or ``FILE``, which is called by its own name."""
    files = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals:
            name, file = Path(text).name, text
        if name in files:
            raise OptionError(f"--load-times names {name!r} twice; write NAME=FILE.")
        files[name] = Path(file)
    return files


def _named(files: tuple[str, ...]) -> dict[str, str]:
    """A short name for each file: its own name, or its path where two are called alike.

    Raises:
        OptionError: A file is given twice.
    """
    if len(set(files)) < len(files):
        raise OptionError("a model is given twice; give each file once.")
    names = [Path(file).name for file in files]
    return {
        name if names.count(name) == 1 else file: file
        for name, file in zip(names, files, strict=True)
    }
