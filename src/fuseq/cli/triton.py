"""``fuseq triton``: write a model repository for Triton Inference Server."""

from __future__ import annotations

import dataclasses

import click

from fuseq.cli.choices import json_option, parse_shapes, shape_option
from fuseq.cli.console import output, print_json, print_notes
from fuseq.serving.triton import TritonOptions, write_repository


@click.command("triton")
@click.argument("model", type=click.Path(path_type=str))
@click.option("--out", required=True, type=click.Path(), help="Folder of the repository.")
@click.option("--name", help="The model's name there; by default the file's.")
@click.option("--onnx", type=click.Path(), help="ONNX file that an engine was built from.")
@click.option("--batch", type=int, default=8, show_default=True, help="Usual batch size.")
@shape_option
@click.option("--max-shape", "maxima", multiple=True, metavar="NAME:D,D,...", help="Largest shape.")
@click.option("--instances", type=int, default=1, show_default=True, help="Copies on each device.")
@click.option(
    "--device", type=click.Choice(("gpu", "cpu")), default="gpu", show_default=True,
    help="Where Triton runs it.",
)  # fmt: skip
@click.option(
    "--delay", type=int, default=100, show_default=True,
    help="How long a request may wait for others, microseconds.",
)  # fmt: skip
@json_option
def triton_command(
    model: str,
    out: str,
    name: str | None,
    onnx: str | None,
    batch: int,
    shapes: tuple[str, ...],
    maxima: tuple[str, ...],
    instances: int,
    device: str,
    delay: int,
    as_json: bool,
) -> None:
    """Write MODEL (ONNX file, or engine of full TensorRT) as a model of a Triton repository.

    Example: fuseq triton int8.onnx --out models --device cpu
    """
    options = TritonOptions(
        name=name, onnx=onnx, batch=batch, shapes=parse_shapes(shapes),
        maxima=parse_shapes(maxima), instances=instances, device=device, delay_us=delay,
    )  # fmt: skip
    written = write_repository(model, out, options)
    if as_json:
        print_json(
            {
                "folder": str(written.folder),
                "name": written.served.name,
                "backend": written.served.backend,
                "batching": dataclasses.asdict(written.served.batching),
                "notes": list(written.notes),
            }
        )
        return
    output.print(str(written.folder), markup=False, highlight=False, soft_wrap=True)
    print_notes(list(written.notes))
