"""docs/cli.md: every command with its options, as `dlemu COMMAND --help` prints them."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from dlemu.cli import cli as program

_HEAD = """# Commands

Made by `scripts/docs` from the commands themselves: each section is what `dlemu COMMAND --help` prints. Settings are
the same everywhere: [settings.md](settings.md). Exit statuses: [results.md](results.md#1-exit-statuses).
"""
_WIDTH = 100


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_sections(program, ("dlemu",))])


def _sections(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
    command._help_option = None  # click keeps the names of the first context that asked: `-h` is the program's
    # A run of the command, not `get_help`: `--help` may show examples and formats of its own.
    ran = CliRunner().invoke(program, [*words[1:], "--help"], prog_name="dlemu", terminal_width=_WIDTH)
    assert ran.exit_code == 0, ran.output
    yield f"## {' '.join(words)}\n\n```text\n{ran.output.rstrip()}\n```\n"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _sections(inner, (*words, name))
