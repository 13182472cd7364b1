"""``fuseq check``: which Q/DQ are at fault, where they come from, what they cost, and the fix."""

from __future__ import annotations

from pathlib import Path

import click

from fuseq.checks.all_rules import RULES
from fuseq.checks.rule_pages import page_of
from fuseq.checks.running import (
    CheckOptions,
    CheckResult,
    check_engine,
    check_model,
    chosen_rules,
)
from fuseq.cli.check_fix import FixWish, fix_and_print
from fuseq.cli.check_text import print_text
from fuseq.cli.choices import gpu_option, html_option, parse_shapes, shape_option
from fuseq.cli.console import errors, output, print_json, progress
from fuseq.cli.places import check_places
from fuseq.errors import OptionError
from fuseq.report.findings import (
    check_numbers,
    github_lines,
    sarif,
)
from fuseq.report.html import write_report
from fuseq.reporting import check_document
from fuseq.settings import Settings, find_settings

_DEFAULT_TARGET = "tensorrt-rtx:sm89"
_DEFAULT_BATCH = 8


@click.command("check")
@click.argument("model", required=False, type=click.Path(path_type=str))
@click.option(
    "--target", "targets", multiple=True, metavar="T[,T...]",
    help=f"compiler:device, several with commas. [default: {_DEFAULT_TARGET}]",
)  # fmt: skip
@gpu_option
@click.option("--batch", type=int, help=f"Batch size to compile for. [default: {_DEFAULT_BATCH}]")
@shape_option
@click.option("--layer-info", type=click.Path(), help="File of trtexec --exportLayerInfo.")
@click.option("--profile", type=click.Path(), help="File of trtexec --exportProfile.")
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "sarif", "github")), default="text",
    show_default=True, help="How findings are printed.",
)  # fmt: skip
@click.option("--select", multiple=True, metavar="CODE", help="Run only these; FQ1 means FQ1xx.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Do not run these.")
@click.option("--explain", metavar="CODE", help="Print a rule's page and stop.")
@click.option("--all", "every", is_flag=True, help="Show every finding, not ten of a rule.")
@click.option("--compile/--no-compile", "compiles", default=True, help="Ask the target's compiler.")
@click.option("--fix", "fixes", is_flag=True, help="Mend what safe single fixes can.")
@click.option(
    "--unsafe-fixes", is_flag=True, help="With --fix or --diff: those too that change values."
)
@click.option("--diff", is_flag=True, help="Show what --fix would change, and write nothing.")
@click.option(
    "-o", "--output", "out", type=click.Path(),
    help="With --fix: ONNX to write. [default: NAME.fixed.onnx beside MODEL, which must not exist]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@html_option
@click.pass_context
def check_command(
    context: click.Context,
    model: str | None,
    targets: tuple[str, ...],
    gpu: str | None,
    batch: int | None,
    shapes: tuple[str, ...],
    layer_info: str | None,
    profile: str | None,
    form: str,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    explain: str | None,
    every: bool,
    compiles: bool,
    fixes: bool,
    unsafe_fixes: bool,
    diff: bool,
    out: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Check MODEL (ONNX), or an engine's layer list (JSON of trtexec), for misplaced quantization.

    Exit code 0: nothing found; 1: findings (with --fix: what is left of them; with --diff: a fix would
    change something); 2: the file or an option cannot be used.

    Example: fuseq check model.onnx --target tensorrt-rtx:sm80,tensorrt-rtx:sm89
    """
    if explain is not None:
        output.print(page_of(explain), markup=False, highlight=False)
        return
    form = _form(form, as_json)
    settings = find_settings(Path.cwd())
    options = CheckOptions(
        targets=_split(targets) or settings.target or (_DEFAULT_TARGET,),
        gpu=gpu or settings.gpu,
        batch=batch if batch is not None else settings.batch or _DEFAULT_BATCH,
        shapes=parse_shapes(shapes),
        compiles=compiles,
        select=_codes(_split(select) or settings.select),
        ignore=_codes((*_split(ignore), *settings.ignore)),
        keep_float=settings.keep_float,
    )
    _check_batch(options.batch)
    wish = FixWish(fixes or diff, unsafe_fixes, diff, out)
    wish.check(model, layer_info)
    check_places([model, layer_info, profile], {"--html": html})
    if html is not None and wish.fixes:
        raise OptionError("--html shows a check; it does not go with --fix or --diff.")
    if wish.fixes and model is not None:
        context.exit(fix_and_print(model, options, wish, form, every))
    with progress(quiet=form != "text") as report:
        report("check", 0, None)
        result = _checked(model, layer_info, profile, options)
        if html is not None:
            onnx = None if model is None or model.lower().endswith(".json") else model
            write_report(html, check_document(result, options, onnx))
    _print(result, form, settings, every)
    context.exit(result.exit_code)


def _checked(
    model: str | None, layer_info: str | None, profile: str | None, options: CheckOptions
) -> CheckResult:
    if model is not None and layer_info is None and model.lower().endswith(".json"):
        model, layer_info = None, model
    if layer_info is not None:
        return check_engine(layer_info, profile, model, options)
    if profile is not None:
        raise OptionError(
            "--profile needs --layer-info: times are read for the layers of an engine."
        )
    if model is None:
        raise OptionError("nothing to check; give an ONNX file, or --layer-info of trtexec.")
    return check_model(model, options)


def _print(result: CheckResult, form: str, settings: Settings, every: bool) -> None:
    if form == "json":
        print_json(check_numbers(result))
    elif form == "sarif":
        print_json(sarif(result))
    elif form == "github":
        for line in github_lines(result):
            click.echo(line)
    else:
        print_text(result, every)
    if settings.file is not None and form == "text":
        errors.print(f"settings: {settings.file}", markup=False, highlight=False)


def _form(form: str, as_json: bool) -> str:
    if as_json and form not in ("text", "json"):
        raise OptionError(f"--json and --format {form} exclude each other; give one of them.")
    return "json" if as_json else form


def _split(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _codes(codes: tuple[str, ...]) -> tuple[str, ...]:
    """Codes in upper case; each must begin at least one rule's code."""
    upper = tuple(code.upper() for code in codes)
    for code in upper:
        if not chosen_rules((code,)):
            known = ", ".join(rule.code for rule in RULES)
            raise OptionError(f"{code!r} is no rule's code or its beginning; rules are {known}.")
    return upper


def _check_batch(batch: int) -> None:
    if batch < 1:
        raise OptionError(f"--batch {batch} is not allowed; a batch has 1 or more samples.")
