"""``fuseq report``: one self-contained HTML page of a document, of models, or of engines."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fuseq.cli.choices import batch_option, gpu_option, parse_shapes, shape_option, target_option
from fuseq.cli.console import errors, progress
from fuseq.cli.places import check_places
from fuseq.errors import OptionError
from fuseq.evaluate.profile import Source
from fuseq.report import document_json
from fuseq.report.document import SCHEMA, Document
from fuseq.report.html import write_report
from fuseq.reporting import ReportOptions, document_of


@click.command("report")
@click.argument("sources", nargs=-1, metavar="SOURCE...", type=click.Path(path_type=str))
@click.option(
    "-o", "--output", type=click.Path(), default="report.html", show_default=True,
    help="HTML file to write.",
)  # fmt: skip
@target_option
@gpu_option
@batch_option
@shape_option
@click.option(
    "--profile", "profiles", multiple=True, type=click.Path(),
    help="trtexec --exportProfile of an engine; one for each engine, in their order.",
)  # fmt: skip
@click.option("--json", "json_file", type=click.Path(), help="Write the document as JSON too.")
def report_command(
    sources: tuple[str, ...],
    output: str,
    target: str,
    gpu: str | None,
    batch: int,
    shapes: tuple[str, ...],
    profiles: tuple[str, ...],
    json_file: str | None,
) -> None:
    """Write one HTML page that needs no network.

    SOURCE is the JSON document of a fuseq command, or ONNX files, or layer lists of trtexec
    --exportLayerInfo; of several, the last is what the page is about and the others stand beside it.

    Example: fuseq report fp16.onnx int8.onnx --target tensorrt-rtx:sm89 -o report.html
    """
    check_places((*sources, *profiles), {"--output": output, "--json": json_file})
    with progress(quiet=False) as report:
        report("report", 0, None)
        document = _document(sources, profiles, ReportOptions(target, gpu, batch, parse_shapes(shapes)))  # fmt: skip
        if json_file is not None:
            document_json.save(document, json_file)
        write_report(output, document)
    errors.print(f"report: {output}", markup=False, highlight=False)


def _document(
    sources: tuple[str, ...], profiles: tuple[str, ...], options: ReportOptions
) -> Document:
    if len(sources) == 1 and not profiles and _is_document(Path(sources[0])):
        return document_json.load(sources[0])
    engines = [path for path in sources if path.lower().endswith(".json")]
    if profiles and len(profiles) != len(engines):
        raise OptionError(
            f"--profile is given {len(profiles)} times for {len(engines)} layer lists; "
            "give one for each, in the same order, or none."
        )
    measured = dict(zip(engines, profiles, strict=True)) if profiles else {}
    return document_of([Source(path, measured.get(path)) for path in sources], options)


def _is_document(file: Path) -> bool:
    """Tell a document from a layer list by its first key; what is neither is refused by the reader."""
    if file.suffix.lower() != ".json" or not file.is_file():
        return False
    try:
        data = json.loads(file.read_text(encoding="utf-8"), strict=False)
    except (ValueError, RecursionError):
        return True  # the reader of documents says what is wrong
    return not isinstance(data, dict) or "Layers" not in data or data.get("schema") == SCHEMA
