"""Runs a job for a command: shows its progress on stderr and its result on stdout."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial

import click
from rich.console import Console

from datagen.errors import UserError
from datagen.storage.storage_base import open_storage
from datagen.withheld import redact_argv
from dlemu.cli import complain, complain_of
from dlemu.cli.options import make_page, print_activity, show_answer
from dlemu.config import check_data, load
from dlemu.config.loading import NOT_INSTALLED
from dlemu.config.schema import Workload
from dlemu.dlio.export import export_beside
from dlemu.ranks import detect_launcher
from dlemu.report.progress import ProgressLine, log_writer
from dlemu.report.units import size
from dlemu.results.kinds import Kind
from dlemu.results.live import Progress, report_command
from dlemu.results.wording import count
from dlemu.runner import events
from dlemu.runner.job import CONFIRM_ABOVE_BYTES, TRIAL_SCALE, JobRequest, run_job
from dlemu.runner.ranks import RunFailedError


def job_request(
    overrides: Sequence[str], config_dir: str | None, *, make: bool = False, yes: bool = False
) -> JobRequest:
    """Return the job that a command line requests; with `make` its dataset is made first, after `confirm_making`."""
    from dlemu.config.overrides import given_keys

    return JobRequest(
        load=partial(load, overrides, config_dir=config_dir),
        overrides=overrides,
        allow_making=partial(confirm_making, yes=yes) if make else None,
        size_is_given=make and "dataset.num_files_train" in given_keys(overrides),
    )


def show_job(
    request: JobRequest, terminal: Terminal, kind: Kind | None = None, *, export: events.OnEvent = export_beside
) -> int:
    """Run a job, show its result and page, and return the exit status. Raises UserError.

    `export` writes files for other programs on the job's events. Without `kind`, the workload determines it.
    """
    on_event = events.to_all(terminal, export, log_writer(shlex.join(redact_argv(sys.argv))))
    try:
        result = run_job(request, on_event, None if kind is None else kind.load_job().job)
    except RunFailedError as error:
        complain_of(error)
        if error.kept is not None and terminal.makes_page:
            make_page(error.kept.folder)
        return error.exit_status
    if result is None:
        return 0
    show_answer(result.summary, result.folder, result.summary.kind, as_json=terminal.as_json, page=terminal.makes_page)
    return result.summary.exit_status


class Terminal:
    """Prints the events of a job: progress on stderr, a dataset that was made on stdout, or on stderr if `as_json`."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.makes_page = False  # whether the job wants a page (`output.report`), once it has begun
        self._line = ProgressLine(Console(stderr=True))

    def __call__(self, event: object) -> None:
        if isinstance(event, Progress):
            self._line.show(str(event), last=event.is_over)
            return
        self._line.leave()
        match event:
            case events.JobBegan():
                self.makes_page = event.workload.output.report
                for note in event.workload.notes:  # other notes are printed below the result
                    if note.startswith(NOT_INSTALLED) and not event.is_second:
                        click.echo(note, err=True)
                if event.folder and detect_launcher() != "none":
                    purpose = "shows what was measured, should the launcher kill all at once"
                    print(f"`{report_command(event.folder)}` {purpose}", file=sys.stderr, flush=True)
            case events.DatasetMade():
                text = f"made {count(event.files, 'file')}, {size(event.bytes)}, in {event.folder}"
                if event.bytes:
                    text += f", {event.bytes / 1e6 / event.seconds:.0f} MB/s"
                if event.kept_files:
                    text += f"; {event.kept_files} existed already"
                print(text, file=sys.stderr if self.as_json else sys.stdout)
            case events.DatasetVerified():
                for finding in event.findings:
                    print(f"{finding.path}: {finding.message}")
                if not event.findings:
                    print(f"{count(event.files, 'file')} in {event.folder}: every byte is as generated")
            case events.Doing():
                print_activity(event.what)
            case events.PartMeasured():
                click.echo(f"probe: {event.text}", err=True)
            case events.NotSaved():
                show_answer(event.answer, event.folder, event.kind, as_json=self.as_json, page=False, unsaved=True)
            case events.Warned():
                complain(event.message)


def confirm_making(workload: Workload, making_bytes: int, ranks: int | None, *, yes: bool) -> None:
    """Prompt before many bytes of a dataset are made; `ranks` is None if their number does not affect the size.

    Raises UserError if the user declines or there is no terminal, SpaceError if the dataset does not fit.
    """
    if making_bytes <= CONFIRM_ABOVE_BYTES or yes:
        return
    from datagen.generate import check_space, files_of

    storage = open_storage(workload.storage_spec.buffered)
    folder = workload.dataset.data_folder
    check_space(files_of(workload.dataset), storage)
    plan = f"{size(making_bytes)} will be made in {folder}"
    if ranks:
        plan += f" for {count(ranks, 'rank')}"
    if (free := storage.free_bytes(folder)) is not None:
        plan += f" ({size(free)} are free there)"
    if sys.stdin.isatty() and sys.stderr.isatty():
        if click.confirm(f"{plan}. Continue?", err=True):
            return
        raise UserError("nothing was made")
    advice = f"{plan}: add --yes to make them"
    if TRIAL_SCALE in workload.scales and not workload.scale:
        advice += f"; to try it with less: scale={TRIAL_SCALE}"
    raise UserError(advice)


def make_here(workload: Workload, *, as_json: bool, yes: bool) -> None:
    """Make a dataset's missing files with a rank for each core, after `confirm_making`; `as_json` prints to stderr."""
    from dlemu.jobs.training.preflight import workload_for_making
    from dlemu.runner.datasets import make_on_this_host

    check_data(workload)
    ranks = len(os.sched_getaffinity(0))
    _, missing_bytes = workload_for_making(workload, ranks, size_is_given=True)
    confirm_making(workload, missing_bytes, None, yes=yes)
    make_on_this_host(workload, ranks, Terminal(as_json=as_json))
