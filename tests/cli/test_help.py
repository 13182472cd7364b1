"""What `fuseq --help` and the shell's completion say."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from fuseq.cli.main import COMMANDS, app


@pytest.fixture
def context() -> click.Context:
    return click.Context(app, info_name="fuseq")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_commands_help_begins_as_the_list_says_and_has_an_example(
    name: str, context: click.Context
) -> None:
    command = app.get_command(context, name)
    assert command is not None and command.help is not None and command.name == name
    assert command.get_short_help_str(200).rstrip(".") + "." == COMMANDS[name]
    assert f"Example: fuseq {name}" in command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts} has no help"


def test_the_groups_help_lists_every_command() -> None:
    told = CliRunner().invoke(app, ["--help"])
    assert told.exit_code == 0
    listed = told.output.split("Commands:")[1]
    assert [line.split()[0] for line in listed.splitlines() if line[2:3].strip()] == list(COMMANDS)


def test_the_shell_completes_commands_and_options(context: click.Context) -> None:
    shell = BashComplete(app, {}, "fuseq", "_FUSEQ_COMPLETE")
    assert [item.value for item in shell.get_completions([], "pr")] == ["profile"]
    assert {item.value for item in shell.get_completions(["plan"], "--ta")} == {"--target"}
    assert [item.value for item in shell.get_completions(["plan", "--format"], "f")] == ["fp8"]
    assert [item.type for item in shell.get_completions(["plan"], "mod")] == ["file"]
