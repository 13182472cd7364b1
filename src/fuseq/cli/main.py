"""Entry point: an explicit list of commands, and errors as one line.

Exit codes: 0 fine, 1 findings or misses, 2 bad usage or input, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import fuseq
from fuseq.cli.bench import bench_command
from fuseq.cli.check import check_command
from fuseq.cli.compare import compare_command
from fuseq.cli.compile import compile_command
from fuseq.cli.console import errors
from fuseq.cli.deploy import deploy_command
from fuseq.cli.doctor import doctor_command
from fuseq.cli.fix import fix_command
from fuseq.cli.plan import plan_command
from fuseq.cli.profile import profile_command
from fuseq.cli.quantize import quantize_command
from fuseq.cli.report import report_command
from fuseq.cli.search import search_command
from fuseq.cli.sensitivity import sensitivity_command
from fuseq.cli.triton import triton_command
from fuseq.errors import FuseqError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(fuseq.__version__, prog_name="fuseq", message="%(prog)s %(version)s")
def app() -> None:
    """Quantize models so that every Q/DQ pair pays for itself, proved by the compiler."""


for _command in (
    quantize_command,
    search_command,
    sensitivity_command,
    plan_command,
    check_command,
    compile_command,
    fix_command,
    bench_command,
    profile_command,
    triton_command,
    report_command,
    compare_command,
    deploy_command,
    doctor_command,
):
    app.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except FuseqError as error:
        _say(f"error: {error}")
        return 2
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.exceptions.Abort):
        _say("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of a pipe went away; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        _say("error: out of memory; use a smaller --batch or model.")
        return 2
    return code if isinstance(code, int) else 0  # a command's own exit code


def _say(text: str) -> None:
    shown = "".join(char if char.isprintable() else "\ufffd" for char in text)
    errors.print(shown, markup=False, highlight=False)
