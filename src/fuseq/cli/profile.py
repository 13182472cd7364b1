"""``fuseq profile``: where an engine's time goes, and its float engine's beside it."""

from __future__ import annotations

import click

from fuseq.cli.choices import gpu_option, html_option, parse_shapes, shape_option
from fuseq.cli.console import print_notes, print_table, progress
from fuseq.cli.places import check_places
from fuseq.errors import OptionError
from fuseq.evaluate.profile import ProfileOptions, Source, profile
from fuseq.report.document_json import to_json
from fuseq.report.html import write_report
from fuseq.report.profile import profile_document, profile_tables


@click.command("profile")
@click.argument("source", type=click.Path(path_type=str))
@click.option("--float", "beside", type=click.Path(), help="The float model or engine beside it.")
@click.option(
    "--target", default="onnxruntime:cpu", show_default=True,
    help="compiler:device that ONNX files are compiled for.",
)  # fmt: skip
@gpu_option
@click.option("--batch", type=int, default=1, show_default=True, help="Size of a dynamic batch.")
@shape_option
@click.option("--threads", type=int, help="Threads on a CPU; all usable processors by default.")
@click.option("--runs", type=int, default=20, show_default=True, help="Profiled runs.")
@click.option("--profile", "profile_file", type=click.Path(), help="trtexec --exportProfile.")
@click.option("--times", type=click.Path(), help="trtexec --exportTimes.")
@click.option("--onnx", type=click.Path(), help="ONNX file of the engine: names its modules.")
@click.option("--float-profile", type=click.Path(), help="--profile of the --float engine.")
@click.option("--float-times", type=click.Path(), help="--times of the --float engine.")
@click.option("--float-onnx", type=click.Path(), help="--onnx of the --float engine.")
@click.option("--top", type=int, default=15, show_default=True, help="Kernels and modules shown.")
@click.option("--depth", type=int, default=3, show_default=True, help="Depth of modules shown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@html_option
@click.pass_context
def profile_command(
    context: click.Context,
    source: str,
    beside: str | None,
    target: str,
    gpu: str | None,
    batch: int,
    shapes: tuple[str, ...],
    threads: int | None,
    runs: int,
    profile_file: str | None,
    times: str | None,
    onnx: str | None,
    float_profile: str | None,
    float_times: str | None,
    float_onnx: str | None,
    top: int,
    depth: int,
    as_json: bool,
    html: str | None,
) -> None:
    """Time every kernel of SOURCE: an ONNX file, an engine, or the JSON of trtexec --exportLayerInfo.

    Kernels are grouped by type, precision and module of the model. Exit code 0: measured; 1: some
    engine could only be predicted; 2: a file or option is refused.

    Example: fuseq profile int8.onnx --float float.onnx --target onnxruntime:cpu
    """
    if beside is None and (float_profile or float_times or float_onnx):
        raise OptionError("--float-profile, --float-times and --float-onnx need --float.")
    if top < 1 or depth < 0:
        raise OptionError(f"--top {top} --depth {depth}: give 1 or more, and 0 or more.")
    read = (source, profile_file, times, onnx, beside, float_profile, float_times, float_onnx)
    check_places(read, {"--html": html})
    options = ProfileOptions(target, gpu, batch, parse_shapes(shapes), threads, runs)
    with progress(quiet=as_json) as report:
        report("profile", 0, None)
        found = profile(Source(source, profile_file, times, onnx), options)
        other = None
        if beside is not None:
            other = profile(Source(beside, float_profile, float_times, float_onnx), options)
    document = profile_document(found, other)
    if html is not None:
        write_report(html, document)
    if as_json:
        click.echo(to_json(document))
    else:
        for table in profile_tables(document, top, depth):
            print_table(table)
        print_notes([*document.missing, *document.notes])
    context.exit(1 if document.missing else 0)
