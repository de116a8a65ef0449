"""Which runs a rehearsal takes, the figures of each, and what all of them together show."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.mlperf.editions import Edition
from dlemu.mlperf.rules import Division

WARM_UP = "warm-up"


@dataclass(frozen=True, kw_only=True)
class RehearsalPlan:
    """The rehearsal of one workload on one system."""

    edition: Edition
    division: Division
    organisation: str
    system: str
    workload: Workload
    words: tuple[str, ...]
    """Overrides of every run."""
    folder: str
    """The rehearsal's: `tree/`, `runs/` and its record lie in it."""

    @property
    def model(self) -> str:
        """The workload's name."""
        return self.workload.model.name

    @property
    def tree(self) -> str:
        """The edition's tree."""
        return os.path.join(self.folder, "tree")

    @property
    def submission(self) -> str:
        """DIVISION/ORG; v1.0 spells divisions with a capital letter."""
        division = self.division.capitalize() if self.edition.name == "1.0" else self.division
        return os.path.join(self.tree, division, self.organisation)

    @property
    def phases(self) -> str:
        """The folder of the workload's phases (v2.0, v3.0) or runs (v1.0)."""
        results = os.path.join(self.submission, "results", self.system)
        if self.edition.name == "1.0":
            return os.path.join(results, f"{self.model}-{self.workload.accelerator}")
        return os.path.join(results, "training", self.model)

    @property
    def runs(self) -> str:
        """The folder of the runs' folders."""
        return self.phases if self.edition.name == "1.0" else os.path.join(self.phases, "run")

    @property
    def labels(self) -> tuple[str, ...]:
        """The runs in their order: `warm-up`, where the edition has one, `run 1`, ..."""
        measured = tuple(f"run {number}" for number in range(1, self.edition.measured_runs + 1))
        return (WARM_UP, *measured) if self.edition.warm_up else measured

    @property
    def least_seconds_per_run(self) -> float:
        """What a run computes when it never waits: its steps by their nominal time."""
        workload = self.workload
        samples = workload.dataset.num_files_train * workload.dataset.num_samples_per_file
        steps = workload.train.epochs * (samples // (workload.reader.batch_size * workload.ranks))
        return steps * mean_seconds(workload.train.computation_time)

    def leaf(self, label: str, stamp: str) -> str:
        """Return a run's folder in the tree."""
        return os.path.join(self.runs, label.replace(" ", "") if self.edition.name == "1.0" else stamp)

    def seed(self, label: str) -> int:
        """Return the seed of a run's shuffles: another one for each."""
        return self.workload.train.seed + self.labels.index(label)


def run_words(words: Sequence[str], seed: int) -> list[str]:
    """Return the overrides of one run of the sequence."""
    return [
        *words,
        "workflow.generate_data=false",
        "output.report=false",  # a page takes seconds, and the time between two runs is limited
        f"train.seed={seed}",
    ]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one run showed."""

    au_dlio_percent: float
    """By DLIO's formula, as the edition's tool would print it: `train_au_mean_percentage`."""
    samples_per_second: float
    """By DLIO's formula."""
    mib_per_second: float
    """Nominal, as DLIO's MB/s: samples/s x record length."""
    au_threshold_percent: float
    au_percent: float | None
    """dlemu's headline AU, from the accelerators' own timeline."""
    ceiling_au_percent: float | None
    limited_by: str | None
    accelerators: int
    hosts: int
    memory_gib_per_host: float
    num_files: int
    samples_per_file: int
    start: str
    end: str

    @property
    def passed(self) -> bool:
        """Whether DLIO's AU reaches the threshold."""
        return self.au_dlio_percent >= self.au_threshold_percent


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The measured runs together. Standard deviations are the population's, as report.py of v1.0 has them."""

    runs: int
    passed: int
    au_dlio_mean_percent: float
    au_dlio_std_percent: float
    samples_per_second_mean: float
    samples_per_second_std: float
    mib_per_second_mean: float
    mib_per_second_std: float
    au_mean_percent: float | None
    """dlemu's headline AU."""
    au_std_percent: float | None

    @property
    def cov_percent(self) -> float:
        """Coefficient of variation of samples/s."""
        return 100 * self.samples_per_second_std / self.samples_per_second_mean if self.samples_per_second_mean else 0.0


def read_figures(folder: str) -> Figures:
    """Read the figures of a finished run off its folder."""
    own, told = _json(os.path.join(folder, "summary.json")), _json(os.path.join(folder, "dlio", "summary.json"))
    metric, metrics = told["metric"], own["metrics"]
    return Figures(
        au_dlio_percent=metric["train_au_mean_percentage"],
        samples_per_second=metric["train_throughput_mean_samples_per_second"],
        mib_per_second=metric["train_io_mean_MB_per_second"],
        au_threshold_percent=metrics["au_threshold_percent"],
        au_percent=(metrics.get("au_percent") or {}).get("mean"),
        ceiling_au_percent=metrics.get("ceiling_au_percent"),
        limited_by=(own.get("limited_by") or {}).get("what"),
        accelerators=told["num_accelerators"],
        hosts=told["num_hosts"],
        memory_gib_per_host=told["host_memory_GB"][0],
        num_files=told["num_files_train"],
        samples_per_file=told["num_samples_per_file"],
        start=told["start"],
        end=told["end"],
    )


def sum_up(measured: Sequence[Figures]) -> Outcome:
    """Return what the measured runs show together; there is at least one."""
    own = [one.au_percent for one in measured if one.au_percent is not None]
    whole = len(own) == len(measured)
    au, rate = [one.au_dlio_percent for one in measured], [one.samples_per_second for one in measured]
    mib = [one.mib_per_second for one in measured]
    return Outcome(
        runs=len(measured),
        passed=sum(one.passed for one in measured),
        au_dlio_mean_percent=float(np.mean(au)),
        au_dlio_std_percent=float(np.std(au)),
        samples_per_second_mean=float(np.mean(rate)),
        samples_per_second_std=float(np.std(rate)),
        mib_per_second_mean=float(np.mean(mib)),
        mib_per_second_std=float(np.std(mib)),
        au_mean_percent=float(np.mean(own)) if whole else None,
        au_std_percent=float(np.std(own)) if whole else None,
    )


def _json(path: str) -> dict[str, Any]:
    with open(path) as lines:
        found: dict[str, Any] = json.load(lines)
    return found
