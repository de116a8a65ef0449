"""What the commands that take a configuration have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_Command = Callable[..., Any]


def configured(command: _Command) -> _Command:
    """Add the overrides, `--config-dir` and `--cfg`."""
    for decorate in (
        click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]..."),
        click.option("--config-dir", "-cd", help="A folder with workload/NAME.yaml of your own, or DLIO's."),
        click.option("--cfg", is_flag=True, help="Print the composed configuration and stop."),
    ):
        command = decorate(command)
    return command
