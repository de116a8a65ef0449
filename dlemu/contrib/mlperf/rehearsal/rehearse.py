"""Rehearses a training result: its dataset, all its runs, the tree in mlpstorage's layout, and a check of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from datagen.inspection import inspect
from datagen.manifest import Manifest
from dlemu.config import datagen_command, digest
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.check.judge import Checked, check_folder
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.attempts import Attempt, Attempts, Question, Record, late_by
from dlemu.contrib.mlperf.rehearsal.datasize import Datasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import (
    copy_into_tree,
    same_file_system,
    write_datagen,
    write_datasize,
    write_readme,
    write_sums,
    write_system,
)
from dlemu.contrib.mlperf.rehearsal.run_figures import LABELS, Figures, Outcome, RehearsalPlan, sum_up
from dlemu.extend import DlemuError, RunBegan, RunEnded, RunsPlanned, UserError, module_command
from dlemu.extend import Outcome as Judged
from dlemu.metrics.demand import sample_divisor
from dlemu.results.wording import scaled

Report = Callable[[str], None]
"""Shows a line of progress."""


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """A finished rehearsal."""

    outcome: Outcome
    limits: tuple[str, ...]
    """What limited the measured runs (`limited_by` of their results), without duplicates."""
    checked: Checked

    @property
    def judged(self) -> Judged:
        """`pass` if all runs passed and no rule is broken; `no verdict` if only the emulator was too slow."""
        if self.outcome.passed == self.outcome.runs and self.checked.valid:
            return "pass"
        broken = {one.finding.rule for one in self.checked.findings if one.finding.severity == "error"}
        return "no verdict" if broken <= {"au.low"} and self.outcome.held_back else "fail"


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """One rehearsal of a training workload."""

    plan: RehearsalPlan
    size: Datasize
    make: bool
    """Whether to generate the dataset first."""
    report: Report

    @property
    def _question(self) -> Question:
        return Question(
            overrides=tuple(without_secrets(self.plan.words)),
            launcher=self.plan.launcher,
            division=self.plan.division,
            organisation=self.plan.organisation,
            system=self.plan.system,
            hosts=self.size.hosts,
            settings_digest=digest([self.plan.workload]),
        )

    def run(self) -> Rehearsed:
        """Generate or inspect the dataset, do the missing runs, write the tree and check it.

        Finished runs are kept: calling it again continues.

        Raises:
            UserError: settings, names or the dataset are wrong; found before the first run.
            DlemuError, Interrupted: a run failed, or a signal stopped it.
        """
        _check_enough_steps(self.plan.workload)
        attempts = Attempts(self.plan, self._question, self.plan.run, self._watch)
        attempts.resume()
        self._begin(attempts)
        attempts.run_missing()
        return Rehearsed(
            outcome=sum_up(attempts.measured),
            limits=tuple(sorted({run.limited_by for run in attempts.measured if run.limited_by})),
            checked=check_folder(self.plan.folder),
        )

    def _begin(self, attempts: Attempts) -> None:
        """Generate the dataset if requested, inspect it, write the phases before the runs, report the plan."""
        began_at = datetime.now()
        output = _generate_dataset(self.plan.words, self.plan.config_dir, self.report) if self.make else None
        manifest = self._dataset()
        write_readme(self.plan)
        write_datasize(self.plan, self.size, began_at)
        write_datagen(self.plan, manifest, output, began_at)
        attempts.save(complete=False)
        for attempt in attempts.runs:
            self._copy_into_tree(attempt, attempts.runs)  # runs that finished before a full disk or Ctrl-C
        for line in self._opening_lines(attempts):
            self.report(line)

    def _dataset(self) -> Manifest | None:
        """Return the dataset's manifest; raises UserError unless it exists, is complete and matches the settings."""
        workload = self.plan.workload
        return inspect(
            workload.dataset,
            command_hint=lambda: f"{datagen_command(workload)}, or add --make",
            storage=workload.storage_spec,
        ).manifest

    def _opening_lines(self, attempts: Attempts) -> list[str]:
        plan, bound = self.plan, self.size.bound
        files = plan.workload.dataset.num_files_train
        lines = [
            f"rehearsal of MLPerf Storage v{EDITION} {plan.division.upper()}: {plan.model},"
            f" {plan.workload.ranks} x {plan.workload.accelerator}{scaled(sample_divisor(plan.workload))};"
            f" {len(LABELS)} runs of at least {timedelta(seconds=round(plan.min_seconds_per_run))} each",
            NOTE,
            f"dataset: {files:,} files; the rules require {bound.files:,} or more ({bound.because})"
            + ("" if files >= bound.files else ": TOO SMALL, the result will not be valid"),
        ]
        if same_file_system(plan.workload.dataset.data_folder, plan.tree):
            lines.append("data and results share a file system, which the rules forbid: set output.folder")
        done = [run.label for run in attempts.runs if attempts.is_done(run)]
        late = late_by(attempts.runs, datetime.now())
        if late is not None:
            lines.append(
                f"the last run began {timedelta(seconds=round(late.total_seconds()))} ago, but the runs must follow one"
                " another; for a valid result start again in a new folder"
            )
        return [*lines, f"results: {plan.folder}" + (f"; done already: {', '.join(done)}" if done else "")]

    def _watch(self, event: RunsPlanned | RunBegan | RunEnded[Attempt, Record]) -> None:
        """Report progress, and copy each run into the tree when it has finished."""
        match event:
            case RunBegan():
                self.report(f"{event.label} ...")
            case RunEnded(run=attempt) if attempt.figures is not None:
                self.report(_run_line(attempt, attempt.figures))
                self._copy_into_tree(attempt, event.answer.attempts)

    def _copy_into_tree(self, attempt: Attempt, attempts: Sequence[Attempt]) -> None:
        """Copy a finished run into the tree, unless it is there already, and update the sums."""
        if attempt.figures is None or os.path.isdir(os.path.join(self.plan.runs, attempt.stamp)):
            return
        copy_into_tree(self.plan, attempt)
        hosts, memory = attempt.figures.hosts, attempt.figures.memory_gib_per_host
        write_system(self.plan.submission, self.plan.system, hosts, memory)
        write_sums(self.plan, attempts)


def _check_enough_steps(workload: Workload) -> None:
    """Raise UserError if the dataset has too few files for AU to be judged, before the first run would find out."""
    from dlemu.jobs.training.enough import too_small

    verdict = "au" if workload.metric.verdict == "sustained" else workload.metric.verdict  # as `run_words` sets it
    by_dlio = replace(workload, metric=replace(workload.metric, verdict=verdict))
    if problem := too_small(by_dlio, workload.ranks):
        raise UserError(problem)


def _generate_dataset(words: Sequence[str], config_dir: str | None, report: Report) -> str:
    """Generate the dataset and return the output of `dlemu datagen`; raises DatagenFailed."""
    cores = len(os.sched_getaffinity(0))
    options = ["--config-dir", config_dir] if config_dir else []
    command = module_command("dlemu", "datagen", "--fsync", *options, *words, f"ranks={cores}")
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    report(ended.stdout.strip())
    if ended.returncode:
        raise DatagenFailed(ended.returncode)
    return ended.stdout


class DatagenFailed(DlemuError):
    """The dataset could not be generated; `dlemu datagen` itself has printed why."""

    def __init__(self, exit_status: int) -> None:
        super().__init__("the dataset could not be generated, see above; fix that and run the same command again")
        self.exit_status = exit_status


def _run_line(attempt: Attempt, figures: Figures) -> str:
    verdict = "passes" if figures.passed else "does not pass"
    own = "" if figures.au_percent is None else f"; dlemu's own AU {figures.au_percent:.2f} %"
    return (
        f"{attempt.label} {verdict}: AU {figures.au_dlio_percent:.2f} %, {figures.samples_per_second:.1f} samples/s"
        f" by DLIO's formulas{own}"
    )
