"""From what was measured to the run's folder and what the terminal shows."""

from __future__ import annotations

import io
import shlex
import sys
from typing import Any

from rich.console import Console

from dlemu.config import to_yaml
from dlemu.emulator.files import write_text
from dlemu.emulator.job import Job
from dlemu.emulator.run import RunLog
from dlemu.mlperf.dlio_files import DlioPlace, write_dlio_files
from dlemu.report.folder import drop_live, write_block_trace, write_steps, write_summary, write_telemetry
from dlemu.report.summary import build_summary
from dlemu.report.terminal import print_result


def finish(job: Job, log: RunLog | None, place: DlioPlace, failure: str | None = None) -> dict[str, Any]:
    """Write the run's folder and return its summary. A run that failed leaves the same folder, marked incomplete.

    DLIO's files of a complete run go to `place`.

    A run that was asked to end early is written as the one it became: `train.total_training_steps` as many as it took.
    """
    if log is not None and log.journal.stopped_early:
        job = job.cut_to(log.journal.stopped_early.steps)
    summary = build_summary(job, log, failure)
    folder = job.folder
    write_text(folder, "config.yaml", to_yaml(job.workload))
    if log is not None and len(log.rows):
        write_steps(folder, log.rows)
        if failure is None:
            write_dlio_files(place, job=job, log=log)
    if log is not None and log.telemetry:
        write_telemetry(folder, log.telemetry)
        write_block_trace(folder, log.telemetry)
    write_text(folder, "log.txt", _as_text(summary, folder))
    write_summary(folder, summary)
    drop_live(folder)
    return summary


def _as_text(summary: dict[str, Any], folder: str) -> str:
    text = io.StringIO()
    print_result(summary, folder, Console(width=100, file=text))
    return f"$ {shlex.join(sys.argv)}\n\n{text.getvalue()}"
