"""``fuseq check --fix`` and ``--diff``: what single fixes change, and where the mended file goes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from fuseq.checks.mending import MendResult, is_mendable, mend_model
from fuseq.checks.running import CheckOptions
from fuseq.cli.check_text import print_text
from fuseq.cli.console import errors, output, print_json, print_notes, progress
from fuseq.errors import OptionError
from fuseq.model import save
from fuseq.quantizing import check_output
from fuseq.report.findings import check_numbers, github_lines, sarif
from fuseq.report.terminal import safe

_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class FixWish:
    """What the user asked for.

    Attributes:
        fixes: Mend at all (--fix or --diff).
        unsafe: Unsafe fixes too.
        only_shows: --diff: write nothing.
        out: -o, None for the default name.
    """

    fixes: bool
    unsafe: bool
    only_shows: bool
    out: str | None

    def check(self, model: str | None, layer_info: str | None) -> None:
        """Refuse options that do not go together, before the work.

        Raises:
            OptionError: Names the options and what to do.
        """
        if not self.fixes:
            for name, given in (("--unsafe-fixes", self.unsafe), ("--output", self.out)):
                if given:
                    raise OptionError(f"{name} does nothing without --fix; add --fix.")
            return
        if layer_info is not None or model is None or model.lower().endswith(".json"):
            raise OptionError("--fix mends ONNX files; an engine is mended by building it again.")
        if self.only_shows and self.out is not None:
            raise OptionError("--diff writes nothing; leave out --output, or use --fix.")
        if not self.only_shows:
            check_output(model, self.place(model))

    def place(self, model: str) -> Path:
        """Where the mended file goes.

        Raises:
            OptionError: The default name is taken.
        """
        if self.out is not None:
            return Path(self.out)
        file = Path(model)
        default = file.with_name(f"{file.stem}.fixed{file.suffix or '.onnx'}")
        if default.exists():
            raise OptionError(f"{default} exists already; give --output.")
        return default


def fix_and_print(model: str, options: CheckOptions, wish: FixWish, form: str, every: bool) -> int:
    """Mend, write unless --diff, print; returns the exit code."""
    with progress(quiet=form != "text") as report:
        report("check and fix", 0, None)
        result = mend_model(model, options, unsafe=wish.unsafe)
    written: Path | None = None
    if not wish.only_shows and (result.mended or wish.out is not None):
        written = wish.place(model)
        save(result.model, written)
    _print(result, wish, written, form, every)
    if wish.only_shows:
        return 1 if result.mended else 0
    return result.after.exit_code


def _print(result: MendResult, wish: FixWish, written: Path | None, form: str, every: bool) -> None:
    left = result.before if wish.only_shows else result.after
    if form == "json":
        print_json({**check_numbers(left), **_numbers(result, written)})
    elif form == "sarif":
        print_json(sarif(left))
    elif form == "github":
        for line in github_lines(left):
            click.echo(line)
    else:
        _print_text(result, wish, written, every)
    print_notes(list(result.notes))


def _numbers(result: MendResult, written: Path | None) -> dict[str, Any]:
    return {
        "fixed": [
            {
                "code": m.finding.code,
                "node": m.finding.node,
                "tensor": m.finding.tensor,
                "done": m.done,
            }
            for m in result.mended
        ],
        "diff": list(result.diff),
        "output": str(written) if written is not None else None,
    }


def _print_text(result: MendResult, wish: FixWish, written: Path | None, every: bool) -> None:
    if wish.only_shows:
        for line in result.diff[2:]:  # without the names of files, which unified_diff puts first
            colour = {"+": "green", "-": "red"}.get(line[:1], "dim")
            output.print(f"[{colour}]{safe(line, 400)}[/]", highlight=False, soft_wrap=True)
    else:
        print_text(result.after, every)
    word = "would be fixed" if wish.only_shows else "fixed"
    shown = result.mended if every else result.mended[:_SHOWN]
    for each in shown:
        place = safe(each.finding.node) or "whole model"
        line = f"[green]{word}[/] {each.finding.code} {place}: {safe(each.done, 300)}"
        output.print(line, highlight=False, soft_wrap=True)
    if len(shown) < len(result.mended):
        output.print(f"{len(result.mended) - len(shown)} more (--all shows them)", highlight=False)
    output.print(_summary(result, wish), highlight=False, soft_wrap=True)
    if written is not None:
        errors.print(f"written: {written}", markup=False, highlight=False)


def _summary(result: MendResult, wish: FixWish) -> str:
    """How many were fixed and how the rest can be."""
    count = len(result.mended)
    parts = [f"{count} finding{'' if count == 1 else 's'} {'would be ' * wish.only_shows}fixed"]
    left = {(f.code, f.node, f.tensor) for f in result.after.findings}
    unsafe = sum(is_mendable(code, True) and not is_mendable(code, False) for code, *_ in left)
    if left:
        parts.append(f"{len(left)} left")
    if unsafe and not wish.unsafe:
        parts.append(f"--unsafe-fixes tries {unsafe} of them")
    if left:
        parts.append("`fuseq fix` plans the whole file anew")
    return "; ".join(parts)
