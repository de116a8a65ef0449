"""What `dlemu train` and `dlio_benchmark` do each in their own way around one and the same run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console

from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.emulator.job import Job
from dlemu.mlperf.dlio_files import DlioFolders
from dlemu.report.run_report import print_result
from dlemu.results.summary import Summary


class TrainManner:
    """The manner of `dlemu train`. Every method but `stops_after_data` is rank 0's, or its parent's, alone."""

    def __init__(self, overrides: Sequence[str], config_dir: str | None) -> None:
        self.overrides, self._config_dir = overrides, config_dir

    def load(self) -> Workload:
        """Return the workload; raises UserError."""
        return load(self.overrides, config_dir=self._config_dir)

    def begin(self, workload: Workload, ranks: int) -> None:
        """Do what must be done once everything is checked, and before data is made: it can be called for both."""

    def stops_after_data(self, workload: Workload) -> bool:
        """Say whether the run is over when its dataset is made."""
        return False

    def made(self) -> None:
        """Tell of a run that stopped after its data."""

    def dlio_place(self, job: Job) -> DlioFolders:
        """Return where DLIO's files of the run go."""
        folder = os.path.join(job.folder, "dlio")
        return DlioFolders(folder=folder, config_folder=os.path.join(folder, "dlio_config"))

    def show(self, summary: Summary, job: Job) -> None:
        """Print the result."""
        print_result(summary, job.folder, Console())

    def exit_status(self, summary: Summary) -> int:
        """Return 0 for a run that passed, 1 for one that completed without passing."""
        return 0 if summary.passed else 1
