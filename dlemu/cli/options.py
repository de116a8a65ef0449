"""What several commands share: the options for settings, --make, --json and --details, and how a result is shown."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import click

from dlemu.results.kinds import kind_named

_Command = Callable[..., Any]
DETAILS = "dlemu.details"  # key in click's context
PAGE_SECONDS = 60.0  # time limit for making a page, which usually takes 2 to 3 s


class Number(click.FloatRange):
    """A finite number within a range, without a unit; click's FloatRange accepts NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number: wanted one without a unit, such as 2000", param, ctx)
        number: float = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number.", param, ctx)


config_dir_option = click.option("--config-dir", "-cd", help="A folder with workload/NAME.yaml of your own, or DLIO's.")


def make_options(data: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `--make` and `--yes`, for a command that can first make missing `data`."""
    make = click.option("--make", is_flag=True, help=f"First make missing {data}; prompt above 10 GB.")
    yes = click.option("--yes", is_flag=True, help="With --make: do not prompt.")
    return lambda command: make(yes(command))


def settings_options(command: _Command) -> _Command:
    """Add the arguments KEY=VALUE, which change settings, and the options `--config-dir` and `--cfg`."""
    cfg = click.option("--cfg", is_flag=True, help="Print the composed configuration and stop.")
    overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
    return cfg(config_dir_option(overrides(command)))


def json_option(file: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `--json`, which prints the contents of `file`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {file}, and nothing else on stdout.")


def answer_options(file: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `--json` and `--details`, which select how `show_answer` prints."""
    return lambda command: json_option(file)(details_option(command))


def details_option(command: _Command) -> _Command:
    """Add `--details`, which `show` reads from click's context."""

    def save(context: click.Context, _: click.Parameter, details: bool) -> None:
        context.meta[DETAILS] = details

    return click.option(
        "--details", is_flag=True, expose_value=False, callback=save, help="Also print all numbers and their meaning."
    )(command)


def show(kind: str, answer: Any, folder: str, *, unsaved: bool = False) -> None:
    """Print the first screen of a result on stdout; with --details, or if the result is unsaved, all of its numbers."""
    from rich.console import Console

    from dlemu.report.any_run import show as show_any

    details = unsaved or click.get_current_context().meta.get(DETAILS, False)
    show_any(kind_named(kind), answer, folder, Console(), details=details)


def show_answer(answer: Any, folder: str, kind: str, *, as_json: bool, page: bool, unsaved: bool = False) -> None:
    """Print an answer: if `as_json` only as JSON, else as text, and then make its page if `page`."""
    if as_json:
        from dlemu.results.answer_files import to_json

        click.echo(to_json(answer), nl=False)
        return
    show(kind, answer, folder, unsaved=unsaved)
    if page:
        make_page(folder)


def print_config(overrides: Sequence[str], config_dir: str | None) -> None:
    from dlemu.config import load, to_yaml

    click.echo(to_yaml(load(overrides, config_dir=config_dir)), nl=False)


def print_activity(activity: str) -> None:
    click.secho(f"{activity} ...", dim=True, err=True)


def make_page(folder: str) -> None:
    """Make report.html in a result's folder, and print its path, or why it could not be made.

    A separate process makes the page, so that it can neither fail the command nor delay it for long.
    """
    from dlemu.ranks.failure import Role
    from dlemu.report.page import missing_packages
    from dlemu.runner.child_run import OverdueError, dlemu_command, output_of

    command = f"dlemu report {shlex.quote(folder)}"
    if missing_packages():
        click.echo(f"report: no page was made: pip install 'dlemu[report]', then: {command}")
        return
    print_activity("making the page")
    try:
        ended = output_of(dlemu_command("report", folder), PAGE_SECONDS, Role("its process", "free some memory"))
    except OverdueError:
        reason = f"it took longer than {PAGE_SECONDS:g} s"
    except OSError as error:
        reason = str(error)
    else:
        if ended.status == 0:
            click.echo(ended.out.splitlines()[-1])  # "report: FOLDER/report.html"
            return
        reason = (ended.err.strip().splitlines() or [ended.how])[-1]
    click.echo(f"report: no page was made ({reason}); to try again: {command}")
