"""What several commands have in common: the options of a configuration, and the page at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from dlemu.results.kinds import Kind

if TYPE_CHECKING:
    from rich.console import Console

    from dlemu.comm.failure import Role
    from dlemu.runner.crew import Worker
    from dlemu.runner.events import Event

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


def json_option(file: str) -> Callable[[_Command], _Command]:
    """Return what adds `--json`, which prints what the file holds; `show_answer` then does."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {file}, and nothing else on stdout.")


def show_answer(
    answer: Any, folder: str, show: Callable[[Any, str, Console], None], *, as_json: bool, page: bool
) -> None:
    """Print an answer: as JSON alone, or in words; then make its `page`."""
    if as_json:
        from dlemu.results.answer_files import to_json

        click.echo(to_json(answer), nl=False)
        return
    from rich.console import Console

    show(answer, folder, Console())
    report_result(page, folder)


def print_config(overrides: Sequence[str], config_dir: str | None, kind: Kind | None = None) -> None:
    """Print the composed configuration; with a kind of job, say on stderr why its command refuses it, if so."""
    from datagen.errors import UserError
    from dlemu.cli import complain
    from dlemu.config import explained, load

    workload = load(overrides, config_dir=config_dir)
    click.echo(explained(workload), nl=False)
    if kind is None:
        return
    from dlemu.runner.job import checked

    try:
        checked(workload, None if kind.is_unnamed else kind.part("job"))
    except UserError as error:
        complain(f"`dlemu {kind.command}` refuses this configuration:\n{error}")


def say_part(event: Event) -> None:
    """Say on stderr what a part of a probe got."""
    from dlemu.runner.events import PartMeasured

    if isinstance(event, PartMeasured):
        click.echo(f"probe: {event.text}", err=True)


def say_what(goes_on: str) -> None:
    """Say on stderr what takes its time now."""
    click.secho(f"{goes_on} ...", dim=True, err=True)


def report_result(wanted: bool, folder: str) -> None:
    """Make the page of a result's folder and say where it is, or in one line why there is none.

    A process of its own makes it, so that it can neither fail the command nor hold it up. `wanted` is `output.report`.
    """
    from datagen.errors import DlemuError
    from dlemu.report.drawing import missing_packages

    if not wanted:
        return
    if missing_packages():
        click.echo(f"report: no page was made: pip install 'dlemu[report]', then: dlemu report {folder}")
        return
    say_what("making the page")
    begin = time.monotonic()
    try:
        # What was imported to measure is half of what a page needs: a fork has it. With threads a fork could hang.
        page = _forked_page(folder) if len(os.listdir("/proc/self/task")) == 1 else _started_page(folder)
    except (DlemuError, OSError) as error:
        late = time.monotonic() - begin >= PAGE_SECONDS
        last_line = (str(error).splitlines() or [type(error).__name__])[-1].removeprefix("dlemu: ")
        reason = f"it took longer than {PAGE_SECONDS:g} s" if late else last_line
        click.echo(f"report: no page was made ({reason}); to try again: dlemu report {folder}")
        return
    click.echo(f"report: {page}")


def _forked_page(folder: str) -> str:
    """Make a page in a fork of this process, which has no other threads; raises DlemuError."""
    from dlemu.runner.crew import run_crew

    [page] = run_crew(_make_page, [folder], _page_maker(), timeout_seconds=PAGE_SECONDS, most_seconds=PAGE_SECONDS)
    return page


def _make_page(worker: Worker, folder: str) -> str:
    from dlemu.studies.pages import write_page

    return write_page([folder])


def _started_page(folder: str) -> str:
    """Make a page in an interpreter of its own; raises DlemuError, OSError."""
    from datagen.errors import DlemuError
    from dlemu.runner.child_run import output_of

    made = output_of([sys.executable, "-m", "dlemu", "report", folder], PAGE_SECONDS, _page_maker())
    if made.status:
        raise DlemuError(made.err.strip() or made.how)
    return made.out.splitlines()[-1].removeprefix("report: ")


def _page_maker() -> Role:
    from dlemu.comm.failure import Role

    return Role("its process", "free some memory")
