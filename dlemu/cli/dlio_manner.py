"""The manner of `dlio_benchmark`: DLIO's files where DLIO writes them, its lines on the terminal, its exit status."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dlemu.cli.manner import TrainManner
from dlemu.config.schema import Workload
from dlemu.emulator.job import Job
from dlemu.mlperf.dlio_command import load_command, read_command, refuse_without_training
from dlemu.mlperf.dlio_files import LOG, DlioFolders, begin_dlio_files, log_generation
from dlemu.results.summary import Summary


class DlioManner(TrainManner):
    """Like `dlemu train` but for what scripts and tools around DLIO see."""

    def __init__(self, overrides: Sequence[str], config_dir: str | None) -> None:
        super().__init__(overrides, config_dir)
        self._place: DlioFolders | None = None
        self._begun = False

    def load(self) -> Workload:
        workload, self._place = load_command(read_command(self.overrides), self._config_dir)
        refuse_without_training(workload)
        return workload

    def begin(self, workload: Workload, ranks: int) -> None:
        if not self._begun:
            print(begin_dlio_files(self._written(), workload, ranks), end="", flush=True)
        self._begun = True

    def stops_after_data(self, workload: Workload) -> bool:
        return not workload.workflow.train  # what else there is without training was refused

    def made(self) -> None:
        print(log_generation(self._written()), end="", flush=True)

    def dlio_place(self, job: Job) -> DlioFolders:
        return self._written()

    def show(self, summary: Summary, job: Job) -> None:
        with open(os.path.join(self._written().folder, LOG)) as lines:
            print(lines.read(), end="", flush=True)
        super().show(summary, job)

    def exit_status(self, summary: Summary) -> int:
        """Return 0: DLIO's status says that a run completed; its [METRIC] lines say whether it passed."""
        return 0

    def _written(self) -> DlioFolders:
        assert self._place is not None  # rank 0 has loaded
        return self._place
