"""Generates the command of a kind of job from its declaration (`Kind`)."""

from __future__ import annotations

import inspect
import os

import click

from dlemu.cli.options import answer_options, make_options, print_config, settings_options
from dlemu.results.kinds import Kind

_EXIT = (
    "Exit status: 0 it completed (and passed, where it is judged), 1 it failed, 2 a usage error (a full disk and "
    "damaged files too), 3 a worker or a rank failed, 4 it completed with no verdict (NO VERDICT, UNDECIDED), "
    "128 + signal for a run that a signal ended."
)


def job_command(kind: Kind) -> click.Command:
    """Return the click command that runs a kind of job; `kind.usage` is its help."""
    # `dlemu train` runs whichever kind of job the workload is for. Every other command runs only its own kind.
    runs_any_kind = kind.command == "train"

    def run(
        overrides: tuple[str, ...],
        config_dir: str | None,
        cfg: bool,
        as_json: bool,
        make: bool = False,
        yes: bool = False,
        export_dlio: str | None = None,
    ) -> None:
        if cfg:
            print_config(overrides, config_dir)
            return
        if export_dlio is not None:
            _export_dlio(overrides, config_dir, export_dlio)
            return
        from dlemu.runner.launched import run_as_placeholder

        if run_as_placeholder(overrides):
            return
        from dlemu.cli.frontends import Terminal, job_request, show_job

        request = job_request(overrides, config_dir, make=make, yes=yes)
        raise SystemExit(show_job(request, Terminal(as_json=as_json), None if runs_any_kind else kind))

    command = run
    if kind.is_exported:
        help_text = "Write the settings as a DLIO workload file, and stop."
        command = click.option("--export-dlio", metavar="FILE", help=help_text)(command)
    command = answer_options("summary.json")(command)
    if runs_any_kind:  # of all jobs, only training reads data that `--make` could make
        command = make_options("data that the job reads")(command)
    usage = f"{inspect.cleandoc(kind.usage or kind.help)}\n\n{_EXIT}"
    return click.command(name=kind.command, help=usage)(settings_options(command))


def _export_dlio(overrides: tuple[str, ...], config_dir: str | None, path: str) -> None:
    """Write the settings as a DLIO workload file."""
    from datagen.atomic import write_text
    from datagen.errors import UserError
    from dlemu.config import load
    from dlemu.dlio.config import dlio_yaml

    text = dlio_yaml(load(overrides, config_dir=config_dir))
    if os.path.lexists(path):
        raise UserError(f"{path} already exists: name another file, or remove it")
    write_text(*os.path.split(path), text)
    click.echo(f"written: {os.path.abspath(path)}")
