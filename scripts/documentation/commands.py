"""docs/cli.md: every command with its options, one line each, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from dlemu.cli import cli as program

_COMMON = {
    "--help": "`-h`, `--help`: print the command's help, with examples.",
    "--config-dir": "`-cd`, `--config-dir FOLDER`: look for `workload/NAME.yaml` there first.",
    "--cfg": "`--cfg`: print the composed settings and stop.",
    "--make": "`--make`: first make the data that is missing; prompts above 10 GB.",
    "--yes": "`--yes`: with `--make`, do not prompt.",
    "--json": "`--json`: print the JSON result, and nothing else on stdout.",
}
"""Options that mean the same in all commands: explained once, and only named in a command's section."""
_USUAL_STATUSES = re.compile(r",? 2 a usage error(?=, \d|\.)|, 128 \+ signal(?=\.)")
_HEAD = """# Commands

Made by `scripts/docs` from the commands; `dlemu COMMAND --help` has examples. Arguments of the form `KEY=VALUE` are
[settings](settings.md). Of exit statuses only those are named that differ from
[results.md](results.md#1-exit-statuses).

Options that several commands have:

{common}
"""


def page() -> str:
    """Return the page."""
    common = "\n".join(f"- {text}" for text in _COMMON.values())
    return "\n".join([_HEAD.format(common=common), *_sections(program, ("dlemu",))])


def _sections(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None, name
            yield from _sections(subcommand, (*path, name))
        return
    summary, *paragraphs = (" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n"))
    arguments = [param.make_metavar(context) for param in command.params if isinstance(param, click.Argument)]
    options = [param for param in command.params if isinstance(param, click.Option)]
    common = ", ".join(f"`{name}`" for name in _COMMON if name in {option.opts[0] for option in options})
    statuses = (_USUAL_STATUSES.sub("", text) for text in paragraphs if text.startswith("Exit status:"))
    status = [text for text in statuses if not text.endswith("that a signal ended.")]
    title = " ".join([*path, *arguments])
    yield "\n\n".join([f"## {title}", f"{summary} {f'Also {common}.' if common else ''}".rstrip(), *status]) + "\n"
    lines = [f"- {_option(option, context)}" for option in options if option.opts[0] not in _COMMON]
    if lines:
        yield "\n".join([*lines, ""])


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None, option.name
    usage, text = record[0].replace(" RANGE", ""), " ".join(record[1].split())
    return f"`{usage}`: {text}" if text else f"`{usage}`"
