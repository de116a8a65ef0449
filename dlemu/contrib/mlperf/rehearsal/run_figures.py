"""The plan of a rehearsal, the figures of each training run, and the sums over all of them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.rules.editions import MEASURED_RUNS
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.dlio.files import GIB
from dlemu.dlio.training import MIB, DlioTraining
from dlemu.extend import UserError, run_train
from dlemu.jobs.training.measured import exported
from dlemu.results.kinds import read_result

WARM_UP = "warm-up"
LABELS = (WARM_UP, *(f"run {number}" for number in range(1, MEASURED_RUNS + 1)))
"""Labels of the runs in order."""
_NAME = re.compile(r"^[A-Za-z0-9._-]+$")


@dataclass(frozen=True, kw_only=True)
class RehearsalPlan:
    """What to rehearse, and the folders in which it goes: one workload on one system."""

    division: Division
    organisation: str
    system: str
    workload: Workload
    words: tuple[str, ...]
    """Overrides for every run."""
    folder: str
    """The rehearsal's folder, with `tree/`, `runs/` and rehearsal.json."""
    launcher: str = ""
    """Command that starts each run, with `{ranks}` for the number of ranks. Empty: all ranks on this host."""
    config_dir: str | None = None

    def __post_init__(self) -> None:
        """Raise UserError for names that the rules do not allow for folders."""
        for option, name in (("--org", self.organisation), ("--system", self.system)):
            if not _NAME.match(name):
                raise UserError(
                    f"{option} {name!r}: the rules allow only letters, digits, dots, dashes and underscores"
                )

    @property
    def model(self) -> str:
        """The workload's name."""
        return self.workload.model.name

    @property
    def tree(self) -> str:
        """Root of the tree in the edition's layout."""
        return os.path.join(self.folder, "tree")

    @property
    def submission(self) -> str:
        """The folder DIVISION/ORG."""
        return os.path.join(self.tree, self.division, self.organisation)

    @property
    def phases(self) -> str:
        """The folder that holds the workload's phases."""
        return os.path.join(self.submission, "results", self.system, "training", self.model)

    @property
    def runs(self) -> str:
        """The folder that holds the runs' folders, which are named by their times."""
        return os.path.join(self.phases, "run")

    @property
    def min_seconds_per_run(self) -> float:
        """Duration of a run that never waits for data: steps x nominal computation time."""
        workload = self.workload
        samples = workload.dataset.num_files_train * workload.dataset.num_samples_per_file
        steps = workload.train.epochs * (samples // (workload.reader.batch_size * workload.ranks))
        limit = workload.train.total_training_steps
        return (min(steps, limit) if limit > 0 else steps) * mean_seconds(workload.train.computation_time)

    def seed(self, label: str) -> int:
        """Return the seed of a run's shuffles, different for each run."""
        return self.workload.train.seed + LABELS.index(label)

    def run(self, words: Sequence[str], folder: str, command: str = "train") -> None:
        """Run `dlemu train` or `dlemu checkpoint` with these overrides to its end; raises DlemuError."""
        options = ["--config-dir", self.config_dir] if self.config_dir else []
        launcher = shlex.split(self.launcher.format(ranks=self.workload.ranks))
        run_train([*options, *words], folder, lambda: None, launcher, command)


def run_words(words: Sequence[str], seed: int) -> list[str]:
    """Return the overrides of one run of the sequence."""
    return [
        "metric.verdict=au",  # as the edition's tool judges; the user's overrides come later and win
        *words,
        "workflow.generate_data=false",
        "output.report=false",  # a page takes seconds, and the time between two runs is limited
        f"train.seed={seed}",
    ]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one run."""

    au_dlio_percent: float
    """By DLIO's formula, as the edition's tool would print it: `train_au_mean_percentage`."""
    samples_per_second: float
    """By DLIO's formula."""
    mib_per_second: float
    """Nominal, like DLIO's MB/s: samples/s x record length."""
    au_threshold_percent: float
    au_percent: float | None
    """AU as dlemu itself reports it, from the accelerators' timelines."""
    ceiling_au_percent: float | None
    """Highest AU that the emulator could reach on these hosts without any storage."""
    limited_by: str | None
    accelerators: int
    hosts: int
    memory_gib_per_host: float
    num_files: int
    start: str
    end: str

    @property
    def passed(self) -> bool:
        """Whether DLIO's AU reaches the threshold."""
        return self.au_dlio_percent >= self.au_threshold_percent

    @property
    def held_back(self) -> bool:
        """Whether it fails, but would fail even without storage, so that nothing is known of the storage."""
        ceiling = self.ceiling_au_percent
        return not self.passed and ceiling is not None and ceiling < self.au_threshold_percent


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Sums over the measured runs. Standard deviations are the population's."""

    runs: int
    passed: int
    held_back: bool
    """Whether every run that failed would have failed even without storage."""
    au_dlio_mean_percent: float
    au_dlio_std_percent: float
    samples_per_second_mean: float
    samples_per_second_std: float
    mib_per_second_mean: float
    mib_per_second_std: float
    au_mean_percent: float | None
    """AU as dlemu itself reports it."""
    au_std_percent: float | None

    @property
    def cov_percent(self) -> float:
        """Coefficient of variation of samples/s."""
        return 100 * self.samples_per_second_std / self.samples_per_second_mean if self.samples_per_second_mean else 0.0


def read_figures(folder: str) -> Figures:
    """Return the figures of a finished run, computed from its steps; raises UserError for a damaged folder."""
    run = read_result(folder)
    summary, facts = run.summary, run.facts
    dlio = DlioTraining(run=exported(run))
    epochs, journal = dlio.rated_epochs(), facts.journal
    rate = float(np.mean([epoch.samples_per_second for epoch in epochs]))
    return Figures(
        au_dlio_percent=float(np.mean([100 * epoch.au for epoch in epochs])),
        samples_per_second=rate,
        mib_per_second=rate * (facts.workload.dataset.record_length_bytes / MIB),
        au_threshold_percent=summary.metrics.au_threshold_percent,
        au_percent=summary.au.mean if summary.au else None,
        ceiling_au_percent=summary.metrics.ceiling_au_percent,
        limited_by=summary.limited_by.what if summary.limited_by else None,
        accelerators=facts.ranks,
        hosts=len(journal.hosts),
        memory_gib_per_host=journal.hosts[0].memory_bytes / GIB,
        num_files=facts.num_files_train,
        start=dlio.stamp(journal.started_ns),
        end=dlio.stamp(dlio.ended_ns),
    )


def sum_up(measured: Sequence[Figures]) -> Outcome:
    """Return the sums over the measured runs, at least one."""
    own = [run.au_percent for run in measured if run.au_percent is not None]
    all_have_it = len(own) == len(measured)
    au, rate = [run.au_dlio_percent for run in measured], [run.samples_per_second for run in measured]
    mib = [run.mib_per_second for run in measured]
    return Outcome(
        runs=len(measured),
        passed=sum(run.passed for run in measured),
        held_back=all(run.passed or run.held_back for run in measured),
        au_dlio_mean_percent=float(np.mean(au)),
        au_dlio_std_percent=float(np.std(au)),
        samples_per_second_mean=float(np.mean(rate)),
        samples_per_second_std=float(np.std(rate)),
        mib_per_second_mean=float(np.mean(mib)),
        mib_per_second_std=float(np.std(mib)),
        au_mean_percent=float(np.mean(own)) if all_have_it else None,
        au_std_percent=float(np.std(own)) if all_have_it else None,
    )
