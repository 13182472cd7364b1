"""``fuseq compare``: how close two models are, output by output and tensor by tensor."""

from __future__ import annotations

import json
import os

import click

import fuseq
from fuseq.cli.choices import json_option, parse_shapes, preset_option, shape_option
from fuseq.cli.console import output, print_notes, print_table, progress
from fuseq.cli.places import check_places
from fuseq.errors import OptionError
from fuseq.evaluate.compare import CompareOptions, compare
from fuseq.evaluate.compare_outputs import Kind
from fuseq.report import document_json
from fuseq.report.comparison import outputs_table, tensors_table
from fuseq.report.document import Document
from fuseq.report.document_closeness import ComparisonRow
from fuseq.report.html.page import write_report
from fuseq.report.summary import comparison_sentences


@click.command("compare")
@click.argument("reference", type=click.Path(path_type=str))
@click.argument("other", type=click.Path(path_type=str))
@click.option(
    "--data", required=True,
    help="Data to run: folder of images, .npy/.npz/.safetensors, module:function, or random.",
)  # fmt: skip
@click.option("--samples", type=int, default=64, show_default=True, help="At most this many.")
@preset_option
@shape_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random data.")
@click.option("--outputs-only", is_flag=True, help="Do not look at the tensors inside.")
@click.option(
    "--outputs-are", type=click.Choice(("classes", "embedding", "values")),
    help="What outputs [N, D] hold. [default: by name and length]",
)  # fmt: skip
@click.option("--metric", metavar="MODULE:FUNCTION", help="Your own metric of the outputs.")
@click.option("--all", "every", is_flag=True, help="Show every tensor, not the 25 that add most.")
@click.option("--html", type=click.Path(), help="Write the report page.")
@click.option("--fail-below", type=float, metavar="DB", help="Exit 1 if an output's SQNR is below.")
@json_option
@click.pass_context
def compare_command(
    context: click.Context,
    /,
    reference: str,
    other: str,
    data: str,
    samples: int,
    preset: str | None,
    shapes: tuple[str, ...],
    seed: int,
    outputs_only: bool,
    outputs_are: Kind | None,
    metric: str | None,
    every: bool,
    html: str | None,
    fail_below: float | None,
    as_json: bool,
) -> None:
    """Compare OTHER with REFERENCE (ONNX files; OTHER may be recorded outputs) on the same data.

    Both run on ONNX Runtime's CPU as they are written: Q/DQ of any format round as the file says.
    Exit code 0: compared; 1: values are NaN or infinite in OTHER only, or an output is below
    --fail-below.

    Example: fuseq compare model.onnx model.fp8.onnx --data photos/ --preset imagenet
    """
    if samples < 1:
        raise OptionError(f"--samples {samples} compares nothing; give 1 or more.")
    options = CompareOptions(
        samples=samples,
        preset=preset,
        shapes=parse_shapes(shapes),
        seed=seed,
        intermediates=not outputs_only,
        outputs_are=outputs_are,
        metric=metric,
    )
    check_places([reference, other, data], {"--html": html})
    with progress(quiet=as_json) as report:
        row = compare(reference, other, data=data, options=options, report=report)
    document = document_of(row, reference)
    if html is not None:
        write_report(html, document)
    if as_json:
        print(json.dumps(json.loads(document_json.to_json(document)), indent=1))
    else:
        _print(row, None if every else 25)
    print_notes(list(row.notes))
    context.exit(exit_code(row, fail_below))


def document_of(row: ComparisonRow, reference: str) -> Document:
    """The document of a comparison alone."""
    title = f"{row.other} against {row.reference}"
    return Document(
        "compare", fuseq.__version__, title, model=os.fspath(reference), comparisons=(row,)
    )


def exit_code(row: ComparisonRow, fail_below: float | None) -> int:
    """1 when values are not finite in the other only, or an output is too far off."""
    if any(output.not_finite for output in row.outputs):
        return 1
    if fail_below is None:
        return 0
    far = (
        not out.identical and (out.sqnr_db is None or out.sqnr_db < fail_below)
        for out in row.outputs
    )
    return 1 if any(far) else 0


def _print(row: ComparisonRow, limit: int | None) -> None:
    print_table(outputs_table(row))
    if row.tensors:
        print_table(tensors_table(row.tensors, limit))
    for sentence in comparison_sentences(row):
        output.print(sentence, soft_wrap=True, highlight=False)
