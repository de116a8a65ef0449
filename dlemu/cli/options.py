"""What several commands have in common: the options of a configuration, and the page at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

_Command = Callable[..., Any]

PAGE_SECONDS = 60.0
"""How long a page may take: it needs 2 to 3."""


def configured(command: _Command) -> _Command:
    """Add the overrides, `--config-dir` and `--cfg`."""
    for decorate in (
        click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]..."),
        click.option("--config-dir", "-cd", help="A folder with workload/NAME.yaml of your own, or DLIO's."),
        click.option("--cfg", is_flag=True, help="Print the composed configuration and stop."),
    ):
        command = decorate(command)
    return command


def print_config(overrides: Sequence[str], config_dir: str | None, *, to_train: bool = False) -> None:
    """Print the composed configuration; with `to_train`, say on stderr why it can't be trained, if so."""
    from datagen.errors import UserError
    from dlemu.cli import complain
    from dlemu.config import load, to_yaml

    workload = load(overrides, config_dir=config_dir)
    click.echo(to_yaml(workload), nl=False)
    if not to_train:
        return
    from dlemu.run.prepare import check

    try:
        check(workload)
    except UserError as error:
        complain(f"`dlemu train` refuses this configuration:\n{error}")


def say_what(goes_on: str) -> None:
    """Say on stderr what takes its time now."""
    click.secho(f"{goes_on} ...", dim=True, err=True)


def report_result(wanted: bool, folder: str) -> None:
    """Make the page of a result's folder and say where it is, or in one line why there is none.

    A process of its own makes it, so that it can neither fail the command nor hold it up. `wanted` is `output.report`.
    """
    from dlemu.report.drawing import missing_packages

    if not wanted:
        return
    if missing_packages():
        click.echo(f"report: no page was made: pip install 'dlemu[report]', then: dlemu report {folder}")
        return
    say_what("making the page")
    command = [sys.executable, "-m", "dlemu", "report", folder]
    try:
        made = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PAGE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        reason = f"it took longer than {PAGE_SECONDS:g} s" if late else error
        click.echo(f"report: no page was made ({reason}); to try again: dlemu report {folder}")
        return
    if made.returncode == 0:
        click.echo(made.stdout.splitlines()[-1])  # "report: FOLDER/report.html"
        return
    reason = (made.stderr.strip().splitlines() or [f"exit status {made.returncode}"])[-1]
    click.echo(f"report: no page was made ({reason}); to try again: dlemu report {folder}")
