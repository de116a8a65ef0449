"""From what was measured to the run's folder and what the terminal shows."""

from __future__ import annotations

import io
import shlex
import sys
from typing import Any

import msgspec
from rich.console import Console

from dlemu.emulator.files import write_text
from dlemu.emulator.job import Job
from dlemu.emulator.trainer import RunLog
from dlemu.mlperf.dlio_files import DlioFolders, write_dlio_files
from dlemu.report.folder import drop_live
from dlemu.report.summary import plain
from dlemu.report.terminal import print_result
from dlemu.results.folder import write_run
from dlemu.results.run import make_run


def finish(job: Job, log: RunLog, place: DlioFolders, failure: str | None = None) -> dict[str, Any]:
    """Write the run's folder and return its summary. A run that failed leaves the same folder, marked incomplete.

    DLIO's files of a complete run go to `place`.

    A run that was asked to end early is written as the one it became: `train.total_training_steps` as many as it took.
    """
    run = make_run(job, log, failure)
    summary = plain(msgspec.json.encode(run.summary))
    if failure is None and len(log.rows):
        write_dlio_files(place, run)
    write_text(job.folder, "log.txt", _as_text(summary, job.folder))
    write_run(run)
    drop_live(job.folder)
    return summary


def _as_text(summary: dict[str, Any], folder: str) -> str:
    text = io.StringIO()
    print_result(summary, folder, Console(width=100, file=text))
    return f"$ {shlex.join(sys.argv)}\n\n{text.getvalue()}"
