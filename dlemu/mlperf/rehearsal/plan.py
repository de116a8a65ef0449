"""What a rehearsal is of, and which runs it takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.mlperf.editions import Edition
from dlemu.mlperf.rules import Division

WARM_UP = "warm-up"


@dataclass(frozen=True, kw_only=True)
class Plan:
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
