"""Writes DLIO's files on a job's events, for the kinds of jobs that DLIO also has (`Kind.exported`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from dlemu.config.schema import Workload
from dlemu.dlio.config import DlioFolders
from dlemu.runner.events import DatasetMade, Event, JobBegan, Saved


def export_beside(event: Event) -> None:
    """When a run has completed, write DLIO's files into the subfolder `dlio` of its folder."""
    if isinstance(event, Saved) and event.run.facts.failure is None:
        folder = os.path.join(event.run.folder, "dlio")
        export_run(DlioFolders(folder=folder, config_folder=os.path.join(folder, "dlio_config")), event.run)


class DlioInPlace:
    """Writes DLIO's files to the folder given to `dlio_benchmark` while a job runs, and its log also to `write_log`."""

    def __init__(self, overrides: Sequence[str], config_dir: str | None, write_log: Callable[[str], None]) -> None:
        self._overrides, self._config_dir, self._write_log = overrides, config_dir, write_log
        self._folders: DlioFolders | None = None
        self._trains = True

    def load(self) -> Workload:
        """Return the workload of the command line; raises UserError."""
        from dlemu.dlio.command import load_command

        workload, self._folders = load_command(self._overrides, self._config_dir)
        return workload

    def __call__(self, event: Event) -> None:
        """Write the files that are due at this event; raises SpaceError, UserError."""
        from dlemu.dlio.files import begin_dlio_files, log_generation

        if self._folders is None:  # an event can also report a command line that `load` refused
            return
        match event:
            case JobBegan(workload, ranks) if not event.is_second:
                self._trains = workload.workflow.train
                self._write_log(begin_dlio_files(self._folders, workload, ranks))
            case DatasetMade() if not self._trains:
                self._write_log(log_generation(self._folders))
            case Saved(run) if run.facts.failure is None:
                self._write_log(export_run(self._folders, run))


def export_run(folders: DlioFolders, run: Any) -> str:
    """Write DLIO's files for a complete run; return its log, or "" if DLIO lacks the kind of job. Raises SpaceError."""
    from dlemu.results.kinds import kind_named

    exported = kind_named(run.facts.kind).load_job().exported
    if exported is None:
        return ""
    from dlemu.dlio.results import write_results
    from dlemu.dlio.training import DlioTraining
    from dlemu.machine.environment import proc_facts
    from dlemu.results.exported import ExportedCheckpoints, ExportedSteps

    host = {"cpuinfo": proc_facts("cpuinfo"), "meminfo": proc_facts("meminfo")}
    match exported(run):
        case ExportedSteps() as steps:
            return write_results(folders, DlioTraining(exported=steps, **host))
        case ExportedCheckpoints() as checkpoints:
            from dlemu.dlio.checkpoints import DlioCheckpoints

            return write_results(folders, DlioCheckpoints(exported=checkpoints, **host))
