"""``fuseq doctor``: which targets work here, and what to install for the others."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import click
from rich.table import Table

import fuseq
from fuseq.cli.choices import json_option
from fuseq.cli.console import output, print_json, print_table
from fuseq.report.terminal import safe
from fuseq.targets import KNOWN_TARGETS, parse_target

_PACKAGES = ("onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy", "ml-dtypes", "safetensors")


@click.command("doctor")
@json_option
def doctor_command(as_json: bool) -> None:
    """Say which targets work on this machine, and what to install for the others.

    Example: fuseq doctor
    """
    states = [(name, parse_target(name).missing()) for name in KNOWN_TARGETS]
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    if as_json:
        numbers: dict[str, Any] = {
            "fuseq": fuseq.__version__,
            "python": platform.python_version(),
            "packages": versions,
            "targets": {name: {"works": gap is None, "missing": gap} for name, gap in states},
        }
        print_json(numbers)
        return
    output.print(f"fuseq {fuseq.__version__}, Python {platform.python_version()}", highlight=False)
    output.print(", ".join(f"{name} {version}" for name, version in versions.items()))
    table = Table()
    table.add_column("target")
    table.add_column("state", overflow="fold")
    for name, gap in states:
        table.add_row(name, safe(gap or "works here"))
    print_table(table)
