"""A rehearsal from the command line to its tree, and what the terminal shows of it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from datagen.errors import DlemuError, UserError
from datagen.inspection import inspect
from datagen.manifest import Manifest
from dlemu.cli import complain
from dlemu.cli.mlperf_check import counted, finding_lines
from dlemu.cli.mlperf_datasize import measured_gib
from dlemu.cli.options import again, check_launcher, take_word
from dlemu.comm import Interrupted, interrupt_once
from dlemu.config import check_runnable, datagen_command, load
from dlemu.config.schema import Workload
from dlemu.mlperf.check.judge import check_folder
from dlemu.mlperf.datasize import Datasize, datasize
from dlemu.mlperf.editions import EDITIONS
from dlemu.mlperf.rehearsal import NOTE
from dlemu.mlperf.rehearsal.layout import lay_out
from dlemu.mlperf.rehearsal.outcome import Outcome, sum_up
from dlemu.mlperf.rehearsal.papers import same_file_system, write_datagen, write_datasize, write_readme, write_sums
from dlemu.mlperf.rehearsal.plan import WARM_UP, Plan
from dlemu.mlperf.rehearsal.record import done_before, save
from dlemu.mlperf.rehearsal.sequence import Attempt, finished, late_by, rehearse
from dlemu.mlperf.rehearsal.system import write_system
from dlemu.mlperf.rules import Division
from dlemu.run.run_folder import new_folder
from dlemu.sizing.process import run_train

_NAME = re.compile(r"^[A-Za-z0-9._-]+$")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line."""

    overrides: tuple[str, ...]
    config_dir: str | None
    edition: str | None
    division: Division
    organisation: str
    system: str
    hosts: int
    memory_gib: float | None
    make: bool


def rehearsed(asked: Asked) -> int:
    """Rehearse and return the exit status; raises UserError for what is wrong before the first run."""
    launcher, words = take_word(asked.overrides, "launcher")
    check_launcher("mlperf run", launcher)
    folder, words = take_word(words, "output.folder")
    workload = load(words, config_dir=asked.config_dir)
    check_runnable(workload)
    _check_names(asked)
    memory = measured_gib() if asked.memory_gib is None else asked.memory_gib
    size = datasize(workload, edition=asked.edition, hosts=asked.hosts, memory_gib_per_host=memory)
    plan = Plan(
        edition=EDITIONS[size.edition],
        division=asked.division,
        organisation=asked.organisation,
        system=asked.system,
        workload=workload,
        words=tuple(words),
        folder=folder or new_folder(workload.model.name, "mlperf-"),
    )
    return _Rehearsal(asked, plan, size, launcher).run()


def _check_names(asked: Asked) -> None:
    for option, name in (("--org", asked.organisation), ("--system", asked.system)):
        if not _NAME.match(name):
            raise UserError(f"{option} {name!r}: wanted letters, digits, dots, dashes and underscores, as the rules do")


class _Rehearsal:
    """One rehearsal, from its first words to its last."""

    def __init__(self, asked: Asked, plan: Plan, size: Datasize, launcher: str) -> None:
        self._asked, self._plan, self._size, self._launcher = asked, plan, size, launcher
        self._question = {
            "overrides": list(plan.words),
            "launcher": launcher,
            "edition": plan.edition.name,
            "division": plan.division,
            "organisation": plan.organisation,
            "system": plan.system,
        }
        self._attempts = done_before(plan.folder, self._question)

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, interrupt_once())
        try:
            self._begin()
            self._attempts = rehearse(self._plan, self._attempts, self._train, self._before, self._after)
        except Interrupted as stop:
            name = signal.Signals(stop.signal_number).name
            complain(f"interrupted by {name}; finished runs are kept: {again(self._plan.folder)}")
            return stop.exit_status
        except UserError:
            raise
        except DlemuError as error:
            complain(f"{error}\nfinished runs are kept: {again(self._plan.folder)}")
            return error.exit_status
        save(self._plan, self._question, self._attempts, complete=True)
        return self._finish()

    def _begin(self) -> None:
        """Make the dataset when asked to, look at it, write what comes before the runs, say what is ahead."""
        said = _make(self._plan.words, self._asked.config_dir) if self._asked.make else None
        manifest = _look(self._plan.workload)
        write_readme(self._plan)
        write_datasize(self._plan, self._size)
        write_datagen(self._plan, manifest, said)
        save(self._plan, self._question, self._attempts, complete=False)
        for attempt in self._attempts:
            self._lay_out(attempt)  # what a full disk or Ctrl-C kept out of it
        for line in self._opening():
            _tell(line)

    def _opening(self) -> list[str]:
        plan, bound = self._plan, self._size.bound
        files = plan.workload.dataset.num_files_train
        told = [
            f"rehearsal of MLPerf Storage v{plan.edition.name} {plan.division.upper()}: {plan.model},"
            f" {plan.workload.ranks} x {plan.workload.accelerator};"
            f" {len(plan.labels)} runs of {timedelta(seconds=round(plan.least_seconds_per_run))} or more each",
            NOTE,
            f"dataset: {files:,} files; the rules want {bound.files:,} or more ({bound.because})"
            + ("" if files >= bound.files else ": TOO SMALL, the result will not be valid"),
        ]
        if plan.edition.checks_tree and same_file_system(plan.workload.dataset.data_folder, plan.tree):
            told.append("data and results lie on one file system: the rules want two; set output.folder")
        done = [label for label in plan.labels if finished(self._attempts, label)]
        late = late_by(self._attempts, datetime.now())
        if late is not None:
            told.append(
                f"the last run began {timedelta(seconds=round(late.total_seconds()))} ago: too long for runs that must"
                " follow one another; for a valid result begin anew in a new folder"
            )
        return [*told, f"results: {plan.folder}" + (f"; done already: {', '.join(done)}" if done else "")]

    def _train(self, words: list[str], folder: str) -> None:
        options = ["--config-dir", self._asked.config_dir] if self._asked.config_dir else []
        launcher = shlex.split(self._launcher.format(ranks=self._plan.workload.ranks))
        run_train([*options, *words], folder, _idle, launcher)

    def _before(self, attempt: Attempt) -> None:
        number = self._plan.labels.index(attempt.label) + 1
        _tell(f"{attempt.label} ({number} of {len(self._plan.labels)}), seed {attempt.seed} ...")

    def _after(self, attempt: Attempt) -> None:
        self._attempts = [*self._attempts, attempt]
        save(self._plan, self._question, self._attempts, complete=False)
        if attempt.figures is not None:
            _tell(_run_line(attempt))
            self._lay_out(attempt)

    def _lay_out(self, attempt: Attempt) -> None:
        """Put a finished run into the tree, unless it is there."""
        if attempt.figures is None or os.path.isdir(self._plan.leaf(attempt.label, attempt.stamp)):
            return
        lay_out(self._plan, attempt)
        write_system(self._plan, attempt.figures)
        write_sums(self._plan, self._attempts)

    def _finish(self) -> int:
        plan = self._plan
        found = [finished(self._attempts, label) for label in plan.labels if label != WARM_UP]
        outcome = sum_up([one.figures for one in found if one is not None and one.figures is not None])
        checked = check_folder(plan.folder)
        limits = sorted({one.figures.limited_by for one in found if one and one.figures and one.figures.limited_by})
        passed = outcome.passed == outcome.runs
        click.secho(_sum_line(outcome), fg="green" if passed else "red", bold=True)
        click.echo(_own_line(outcome, limits))
        for line, style in finding_lines(checked):
            click.secho(line, **style)
        click.echo(f"by the rules: {counted(checked)}")
        click.echo(f"{NOTE}\ntree: {plan.tree}; to check it again: dlemu mlperf check {plan.folder}")
        click.echo(f"pages of the runs: dlemu report {os.path.join(plan.folder, 'runs')}/*")
        return 0 if passed and checked.valid else 1


def _make(words: Sequence[str], config_dir: str | None) -> str:
    """Make the dataset and return what was printed; raises UserError, DlemuError when that fails."""
    cores = len(os.sched_getaffinity(0))
    options = ["--config-dir", config_dir] if config_dir else []
    command = [sys.executable, "-m", "dlemu", "datagen", "--fsync", *options, *words, f"ranks={cores}"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    _tell(ended.stdout.strip())
    if ended.returncode:
        raise SystemExit(ended.returncode)  # it has said why
    return ended.stdout


def _look(workload: Workload) -> Manifest | None:
    """Raise UserError when the dataset is not there, whole, and as asked for; return its manifest."""
    found = inspect(workload.dataset, command_hint=lambda: f"{datagen_command(workload)}, or say --make")
    return found.manifest


def _run_line(attempt: Attempt) -> str:
    figures = attempt.figures
    assert figures is not None  # told of finished runs alone
    verdict = "passes" if figures.passed else "does not pass"
    own = "" if figures.au_percent is None else f"; dlemu's own AU {figures.au_percent:.2f} %"
    return (
        f"{attempt.label} {verdict}: AU {figures.au_dlio_percent:.2f} %, {figures.samples_per_second:.1f} samples/s"
        f" by DLIO's formulas{own}"
    )


def _sum_line(outcome: Outcome) -> str:
    return (
        f"{outcome.passed} of {outcome.runs} runs pass: AU {outcome.au_dlio_mean_percent:.1f} %"
        f" +- {outcome.au_dlio_std_percent:.1f}, {outcome.samples_per_second_mean:,.0f} samples/s"
        f" (mean of {outcome.runs}, CoV {outcome.cov_percent:.1f} %), by DLIO's formulas"
    )


def _own_line(outcome: Outcome, limits: Sequence[str]) -> str:
    limited = f"limited by: {', '.join(limits) or 'not known'}"
    if outcome.au_mean_percent is None:
        return limited
    return f"dlemu's own AU: {outcome.au_mean_percent:.1f} % +- {outcome.au_std_percent:.1f}; {limited}"


def _idle() -> None:
    """A run goes to its end, whatever it shows on the way."""


def _tell(line: str) -> None:
    click.echo(line, err=True)
