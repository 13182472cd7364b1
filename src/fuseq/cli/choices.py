"""Option groups that several commands share, so that an option is spelled alike everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fuseq.errors import OptionError
from fuseq.formats import USER_FORMATS
from fuseq.options import METHODS, PRECISIONS, ROUNDINGS, QuantizeOptions
from fuseq.placement.plan import MIN_GAIN_PERCENT

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
html_option = click.option(
    "--html", "html", type=click.Path(), help="Write the report page, one HTML file, too."
)
target_option = click.option(
    "--target",
    default="tensorrt-rtx:sm89",
    show_default=True,
    help="compiler:device, for example tensorrt-rtx:sm89 or onnxruntime:cpu.",
)
gpu_option = click.option("--gpu", help="GPU that predictions assume, for example 'L40S'.")
batch_option = click.option(
    "--batch", type=int, default=8, show_default=True, help="Batch size to compile for."
)
shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME:D,D,...",
    help="Static shape of an input with dynamic dimensions; repeat for more.",
)
calib_option = click.option(
    "--calib",
    required=True,
    help="Calibration data: folder of images, .npy/.npz/.safetensors, module:function, or random.",
)
preset_option = click.option(
    "--preset", help="How images become inputs: imagenet, clip, inception, zero-one, yolo."
)
method_option = click.option(
    "--method", default="max", show_default=True,
    help=f"How ranges become scales: {', '.join(METHODS)}; percentile:99.9 names the percentile.",
)  # fmt: skip
model_argument = click.argument("model", type=click.Path(path_type=str))


def placement_options(command: Command) -> Command:
    """Add what decides placement: format, target, precision, policy, globs, shapes."""
    decorators = (
        click.option(
            "--format", "fmt", type=click.Choice(USER_FORMATS), default="int8", show_default=True,
            help="Number format.",
        ),
        target_option,
        gpu_option,
        click.option("--precision", type=click.Choice(PRECISIONS), help="Type of what stays float."),
        click.option(
            "--policy", type=click.Choice(("pays", "full")), default="pays", show_default=True,
            help="pays: only what gains, as predicted for the compiled engine or, on onnxruntime:cpu, "
            "as timed; full: all that the target runs.",
        ),
        click.option(
            "--min-gain", type=float, default=MIN_GAIN_PERCENT, show_default=True, metavar="PERCENT",
            help="With pays: what gains less, a region or the whole model, stays float.",
        ),
        click.option("--exclude", multiple=True, metavar="GLOB", help="Keep float; may repeat."),
        click.option("--include", multiple=True, metavar="GLOB", help="Quantize only these."),
        click.option("--keep-first", is_flag=True, help="Keep the first layers in float."),
        click.option("--keep-last", is_flag=True, help="Keep the last layers in float."),
        batch_option,
        shape_option,
        click.option(
            "--io-types", type=click.Choice(("keep", "convert")), default="keep",
            show_default=True, help="Types of inputs and outputs.",
        ),
    )  # fmt: skip
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def accuracy_options(command: Command) -> Command:
    """Add what makes the same kernels more accurate: rounding, biases, equalizing, smoothing."""
    decorators = (
        click.option(
            "--rounding", type=click.Choice(ROUNDINGS), default="nearest", show_default=True,
            help="How weights are rounded; gptq weighs errors by the calibration data.",
        ),
        click.option(
            "--bias-correction", is_flag=True,
            help="Undo the mean error of each layer in its bias.",
        ),
        click.option(
            "--equalize", is_flag=True,
            help="Bring channels between layers to ranges that one weight scale serves; outputs stay.",
        ),
        click.option(
            "--smooth", type=float, metavar="STRENGTH",
            help="Move ranges of channels from LayerNorm into the layers behind it, 0 to 1; "
            "usually 0.5.",
        ),
    )  # fmt: skip
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def quantize_options(values: dict[str, Any], **more: Any) -> QuantizeOptions:
    """Make options from what :func:`placement_options` and :func:`accuracy_options` parsed."""
    return QuantizeOptions(
        format=values["fmt"],
        target=values["target"],
        precision=values["precision"],
        policy=values["policy"],
        min_gain=values["min_gain"],
        exclude=tuple(values["exclude"]),
        include=tuple(values["include"]),
        keep_first=values["keep_first"],
        keep_last=values["keep_last"],
        batch=values["batch"],
        shapes=parse_shapes(values["shapes"]),
        io_types=values["io_types"],
        gpu=values["gpu"],
        rounding=values.get("rounding", "nearest"),
        bias_correction=values.get("bias_correction", False),
        equalize=values.get("equalize", False),
        smooth=values.get("smooth"),
        **more,
    )


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """``NAME:1,3,224,224`` or ``NAME:1x3x224x224`` to a shape by name.

    Raises:
        OptionError: No name, or a dimension is not a positive number.
    """
    shapes = {}
    for text in texts:
        name, colon, dims = text.rpartition(":")
        parts = dims.replace("x", ",").split(",")
        if not colon or not name or not all(map(_is_size, parts)):
            raise OptionError(
                f"--shape {text!r} is not NAME:D,D,...; write for example input:1,3,224,224."
            )
        shapes[name] = tuple(int(part) for part in parts)
    return shapes


def _is_size(text: str) -> bool:
    """A positive number in ASCII digits, no longer than any size is."""
    digits = text.strip()
    return digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) > 0
