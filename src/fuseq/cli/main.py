"""Entry point: an explicit list of commands, and errors as one line.

Exit codes: 0 fine, 1 findings or misses, 2 bad usage or input, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

import fuseq
from fuseq.cli.console import errors
from fuseq.cli.later import put_off_imports
from fuseq.errors import FuseqError

COMMANDS = {
    "quantize": "Quantize MODEL so that every Q/DQ pair pays for itself on the target.",
    "search": "Search the fastest plan for MODEL by compiling; it never ends worse than it began.",
    "sensitivity": "Rank MODEL's regions by the error that quantizing them brings, beside the time it saves.",
    "plan": "Print the plan for MODEL without data: what is quantized, what is not, and why.",
    "check": "Check MODEL (ONNX), or an engine's layer list (JSON of trtexec), for misplaced quantization.",
    "compile": "Compile MODEL for a target, strongly typed, and list what the engine runs.",
    "fix": "Strip MODEL's quantization, plan it anew for the target, and apply the scales it had.",
    "bench": "Time MODELS (ONNX files or engines) in one run, taking turns; ratios refer to the first.",
    "profile": "Time every kernel of SOURCE: an ONNX file, an engine, or the JSON of trtexec --exportLayerInfo.",
    "triton": "Write MODEL (ONNX file, or engine of full TensorRT) as a model of a Triton repository.",
    "report": "Write one HTML page that needs no network.",
    "compare": "Compare OTHER with REFERENCE (ONNX files; OTHER may be recorded outputs) on the same data.",
    "deploy": "Quantize MODEL, compile it in float and quantized, check, compare, measure, and report.",
    "doctor": "Say which targets work on this machine, and what to install for the others.",
}
"""Every command and its first line of help; ``NAME`` is ``NAME_command`` in ``fuseq.cli.NAME``."""


class Commands(click.Group):
    """The commands of :data:`COMMANDS`, imported when they are run: shells ask for names often."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"fuseq.cli.{cmd_name}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List names and first lines."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names, with their first lines where the shell shows them."""
        found = [
            CompletionItem(name, help=line)
            for name, line in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(fuseq.__version__, prog_name="fuseq", message="%(prog)s %(version)s")
def app() -> None:
    """Quantize models so that every Q/DQ pair pays for itself, proved by the compiler.

    Example: fuseq plan model.onnx --format fp8 --target tensorrt-rtx:sm89

    Completion of commands and options: eval "$(_FUSEQ_COMPLETE=bash_source fuseq)", or zsh_source,
    or fish_source.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process."""
    put_off_imports()
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
    except OSError as error:  # of the machine: no room for temporary files, too many open ones
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror or error}; free some room, or mend the place.")
        return 2
    except MemoryError:
        _say("error: out of memory; use a smaller --batch or model.")
        return 2
    return code if isinstance(code, int) else 0  # a command's own exit code


def _say(text: str) -> None:
    shown = "".join(char if char.isprintable() else "\ufffd" for char in text)
    errors.print(shown, markup=False, highlight=False)
