"""The frontends of a run: `dlemu train` and `dlemu datagen` on a terminal, and `dlio_benchmark`."""

from __future__ import annotations

import io
import math
import os
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from datagen.atomic import write_text
from dlemu.cli import complain, complain_of
from dlemu.cli.first_run import advise, allow, given_keys
from dlemu.cli.options import report_result, say_what
from dlemu.comm import within
from dlemu.config import load
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.emulator.journal import ADVICE
from dlemu.metrics.verdict import EXIT_STATUSES
from dlemu.mlperf.dlio_checkpoints import DlioCheckpoints, with_host_files, write_dlio_checkpoints
from dlemu.mlperf.dlio_command import load_command, read_command
from dlemu.mlperf.dlio_files import LOG, DlioFolders, begin_dlio_files, log_generation, write_dlio_files
from dlemu.report.checkpoint_report import print_checkpoints
from dlemu.report.progress import CheckpointsProgress, DatagenProgress, TrainingProgress
from dlemu.report.run_report import print_result
from dlemu.report.units import count, size
from dlemu.results.checkpoint_folder import read_checkpoint_run
from dlemu.results.checkpoint_run import CheckpointRun
from dlemu.results.folder import holds_checkpoints, read_summary
from dlemu.results.run import Run
from dlemu.results.summary import Summary
from dlemu.run.checkpoint_story import checkpoint
from dlemu.run.enough import to_make
from dlemu.run.events import (
    CheckpointProgress,
    DatasetMade,
    DatasetProgress,
    DatasetVerified,
    Doing,
    Event,
    OnlyDataMade,
    RankFailed,
    TrainingBegan,
    TrainingStep,
    Warned,
)
from dlemu.run.prepare_checkpoints import to_write
from dlemu.run.ranks import RunFailedError
from dlemu.run.training import train


def show_training(frontend: TerminalFrontend) -> int:
    """Train, show the result with its page, and return the exit status; raises UserError."""
    try:
        folder = train(frontend)
    except RunFailedError as error:
        complain_of(error)
        if error.kept is not None:
            report_result(frontend.makes_page, error.kept.folder)
        return error.exit_status
    if folder is None:
        return 0
    if holds_checkpoints(folder):
        frontend.show_checkpoints(read_checkpoint_run(folder))
        report_result(frontend.makes_page, folder)
        return 0
    summary = read_summary(folder)
    frontend.show(summary, folder)
    report_result(frontend.makes_page, folder)
    return frontend.exit_status(summary)


def show_checkpoints(frontend: TerminalFrontend) -> int:
    """Write and read checkpoints, show the result with its page, and return the exit status; raises UserError."""
    try:
        folder = checkpoint(frontend, frontend.fit_checkpoints)
    except RunFailedError as error:
        complain_of(error)
        if error.kept is not None:
            report_result(frontend.makes_page, error.kept.folder)
        return error.exit_status
    if folder is not None:
        frontend.show_checkpoints(read_checkpoint_run(folder))
        report_result(frontend.makes_page, folder)
    return 0


class TerminalFrontend:
    """`dlemu train`, and `dlemu datagen`: progress on stderr, results on stdout."""

    wants_verdict = True

    def __init__(
        self, overrides: Sequence[str], config_dir: str | None, *, make: bool = False, yes: bool = False
    ) -> None:
        """`make` makes first what the run reads and is missing, above some size only when asked, or with `yes`."""
        self.overrides, self._config_dir = overrides, config_dir
        self._make, self._yes = make, yes
        self.makes_page = False
        self.command = shlex.join(without_secrets(sys.argv))
        """What the log says was run."""
        self._training: TrainingProgress | None = None
        self._dataset: DatagenProgress | None = None
        self._checkpoints: CheckpointsProgress | None = None

    def load(self) -> Workload:
        workload = load(self.overrides, config_dir=self._config_dir)
        self.makes_page = workload.output.report
        return workload

    def fit(self, workload: Workload, ranks: int) -> Workload:
        if not self._make:
            return workload
        given = "dataset.num_files_train" in given_keys(self.overrides)
        making = within(
            workload.timeout_seconds,
            lambda: to_make(workload, ranks, given=given),
            f"looking at the dataset in {workload.dataset.data_folder}",
        )
        allow(making.workload, making.workload.dataset.data_folder, ranks, making.bytes, yes=self._yes)
        return making.workload

    def fit_checkpoints(self, workload: Workload, ranks: int) -> Workload:
        """Do for checkpoints what `fit` does for training."""
        if not self._make:
            return workload
        folder = workload.checkpoint.checkpoint_folder
        making = within(workload.timeout_seconds, lambda: to_write(workload, ranks), f"looking at {folder}")
        allow(making.workload, folder, ranks, making.bytes, yes=self._yes)
        return making.workload

    def advise(self, workload: Workload, ranks: int, files_there: int) -> str:
        return advise(workload, ranks, files_there, self.overrides, self._config_dir)

    def begin(self, workload: Workload, ranks: int) -> None:
        """Do nothing: the run's own folder holds all that there is to write."""

    def tell(self, event: Event) -> None:
        match event:
            case TrainingBegan():
                self._training = TrainingProgress(Console(stderr=True), event.epoch_steps)
            case TrainingStep() if self._training is not None:
                au = math.nan if event.au_percent is None else event.au_percent
                self._training.step(event.epoch, event.step, au, event.mb_per_second)
            case DatasetProgress():
                if self._dataset is None:
                    self._dataset = DatagenProgress(Console(stderr=True), ranks=event.ranks, verb=event.verb)
                self._dataset.update(event.done)
            case CheckpointProgress():
                if self._checkpoints is None:
                    self._checkpoints = CheckpointsProgress(Console(stderr=True))
                self._checkpoints.update(
                    event.phase, event.checkpoint, event.checkpoints, event.bytes, event.total_bytes
                )
            case DatasetMade():
                print(_made_line(event))
            case DatasetVerified():
                for finding in event.findings:
                    print(f"{finding.severity} {finding.kind} {finding.path}: {finding.message}")
                if all(finding.severity == "warning" for finding in event.findings):
                    others = f"; {count(len(event.findings), 'other')} beside them" if event.findings else ""
                    print(f"{count(event.files, 'file')} in {event.folder}: every byte is as generated{others}")
            case Doing():
                say_what(event.what)
            case Warned() | RankFailed():
                complain(event.message)

    def write(self, run: Run) -> None:
        if run.facts.failure is None:
            write_dlio_files(self.dlio_folders(run.folder), run)
        text = io.StringIO()
        print_result(run.summary, run.folder, Console(width=100, file=text))
        write_text(run.folder, "log.txt", f"$ {self.command}\n\n{text.getvalue()}", advice=ADVICE)

    def write_checkpoints(self, run: CheckpointRun) -> None:
        if run.facts.failure is None:
            write_dlio_checkpoints(self.dlio_folders(run.folder), with_host_files(_dlio_run(run)))
        text = io.StringIO()
        print_checkpoints(run.summary, run.folder, Console(width=100, file=text))
        write_text(run.folder, "log.txt", f"$ {self.command}\n\n{text.getvalue()}", advice=ADVICE)

    def show_checkpoints(self, run: CheckpointRun) -> None:
        """Print the result of checkpoints."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        print_checkpoints(run.summary, run.folder, Console())

    def dlio_folders(self, run_folder: str) -> DlioFolders:
        """Return where DLIO's files of the run go."""
        folder = os.path.join(run_folder, "dlio")
        return DlioFolders(folder=folder, config_folder=os.path.join(folder, "dlio_config"))

    def show(self, summary: Summary, folder: str) -> None:
        """Print the result."""
        print_result(summary, folder, Console())

    def exit_status(self, summary: Summary) -> int:
        """Return what says how the verdict fell."""
        return EXIT_STATUSES[summary.outcome or "no verdict"]


class DlioFrontend(TerminalFrontend):
    """`dlio_benchmark`: DLIO's files where DLIO writes them, its lines on the terminal, its exit status."""

    wants_verdict = False  # DLIO runs what it can, and so do scripts around it

    def __init__(self, overrides: Sequence[str], config_dir: str | None) -> None:
        super().__init__(overrides, config_dir)
        self._folders: DlioFolders | None = None

    def load(self) -> Workload:
        workload, self._folders = load_command(read_command(self.overrides), self._config_dir)
        self.makes_page = workload.output.report
        return workload

    def begin(self, workload: Workload, ranks: int) -> None:
        print(begin_dlio_files(self._written(), workload, ranks), end="", flush=True)

    def tell(self, event: Event) -> None:
        super().tell(event)
        if isinstance(event, OnlyDataMade):
            print(log_generation(self._written()), end="", flush=True)

    def dlio_folders(self, run_folder: str) -> DlioFolders:
        return self._written()

    def show(self, summary: Summary, folder: str) -> None:
        self._show_log()
        super().show(summary, folder)

    def show_checkpoints(self, run: CheckpointRun) -> None:
        self._show_log()
        super().show_checkpoints(run)

    def _show_log(self) -> None:
        with open(os.path.join(self._written().folder, LOG)) as lines:
            print(lines.read(), end="", flush=True)

    def exit_status(self, summary: Summary) -> int:
        """Return 0: DLIO's status says that a run completed; its [METRIC] lines say whether it passed."""
        return 0

    def _written(self) -> DlioFolders:
        assert self._folders is not None  # `load` was called
        return self._folders


def _dlio_run(run: CheckpointRun) -> DlioCheckpoints:
    facts, journal = run.facts, run.facts.journal
    assert journal.ended_ns is not None  # it is complete
    return DlioCheckpoints(
        workload=facts.workload,
        plan=facts.plan,
        records=run.records,
        hosts=journal.hosts,
        rank_nodes=journal.rank_nodes,
        started_ns=journal.started_ns,
        ended_ns=journal.ended_ns,
        wall_clock_offset_ns=journal.wall_clock_offset_ns,
    )


def _made_line(made: DatasetMade) -> str:
    rate = f", {made.bytes / 1e6 / made.seconds:.0f} MB/s" if made.bytes else ""
    there = f"; {made.kept_files} were there already" if made.kept_files else ""
    return f"made {count(made.files, 'file')}, {size(made.bytes)}, in {made.folder}{rate}{there}"
