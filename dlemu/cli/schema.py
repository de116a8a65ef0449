"""`dlemu schema`: the format of result files, for programs."""

from __future__ import annotations

import click


@click.command(name="schema")
@click.argument("name", required=False, metavar="[COMMAND]")
def command(name: str | None) -> None:
    """Print the JSON Schema (2020-12) of the file that a command saves, and prints with --json.

    \b
    dlemu schema                      # lists the commands
    dlemu schema train > train.schema.json

    Keys may be added within a schema_version; none changes its meaning or disappears.

    Exit status: 0, or 2 for a command that saves no result.
    """
    from datagen.errors import UserError
    from datagen.registry import nearest
    from dlemu.results.schemas import kinds_by_command, schema_text

    known = kinds_by_command()
    if name is None:
        for command_name, kind in sorted(known.items()):
            click.echo(f"{command_name:23}{kind.answer}")
        return
    if name not in known:
        raise UserError(f"{name!r} saves no result with a schema: {nearest(name, known)}known: {', '.join(known)}")
    click.echo(schema_text(known[name]), nl=False)
