"""What a rank does: it stats its share of the files, a row each; and what is computed of the rows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.metrics.catalogue import RUN, Metric
from dlemu.ranks import Comm
from dlemu.ranks.row_log import RowLog
from dlemu.runner.events import Doing
from dlemu.runner.job_kind import JobKind, Notify, RowsRun
from dlemu.runner.rows_job import RowsSummary, common_fields, rows_parts
from dlemu.runner.run_folder import Job
from dlemu_stat.settings import StatSettings


@dataclass(frozen=True, kw_only=True)
class StatSummary(RowsSummary):
    """The result of a run of stat calls."""

    calls: int
    mean_us: Annotated[
        float | None, Metric("one call", "us", "lower", "mean time of a stat call", head="call\nus", phase=RUN)
    ]
    calls_per_second: Annotated[
        float | None, Metric("calls", "/s", "higher", "of all ranks together", head="calls\n/s", is_tile=True)
    ]


class StatKind(JobKind):
    """Every file of a folder, looked at by one of the ranks."""

    name = "stat"
    columns: ClassVar[Mapping[str, str]] = {
        "rank": "rank of the run",
        "file": "number of the file, from 0",
        "began_ns": "the call began, CLOCK_MONOTONIC",
        "call_ns": "how long it took",
    }
    summary_type = StatSummary

    def looks_at(self, workload: Workload) -> str:
        return workload.section(StatSettings).folder

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> Job:
        files = workload.section(StatSettings).folder
        if not os.path.isdir(files):
            raise UserError(f"stat.folder is {files}, which is not a folder: wanted one with files")
        return super().plan(workload, ranks, wants_verdict=wants_verdict)

    def watched_folders(self, job: Job) -> Iterator[str]:
        yield job.workload.section(StatSettings).folder

    def measure(self, job: Job, comm: Comm, log: RowLog, notify: Notify | None) -> None:
        settings = job.workload.section(StatSettings)
        names = sorted(os.listdir(settings.folder))
        for number in range(settings.rounds):
            if notify is not None:
                notify(Doing(f"round {number + 1} of {settings.rounds}"))
            for file in range(comm.rank, len(names), comm.size):
                began_ns = time.monotonic_ns()
                os.stat(os.path.join(settings.folder, names[file]))
                ended_ns = time.monotonic_ns()
                log.add(rank=comm.rank, file=file, began_ns=began_ns, call_ns=ended_ns - began_ns)

    def summarise(self, run: RowsRun) -> StatSummary:
        calls, call_ns = len(run.rows), run.rows["call_ns"]
        mean_us = float(call_ns.mean()) / 1e3 if calls else None
        seconds = float(np.max([call_ns[run.rows["rank"] == rank].sum() for rank in range(run.facts.ranks)])) / 1e9
        return StatSummary(
            **common_fields(run.facts),
            verdict=f"{calls} calls" if mean_us is None else f"{calls} calls, {mean_us:.1f} us each",
            calls=calls,
            mean_us=mean_us,
            calls_per_second=calls / seconds if seconds else None,
        )


PARTS = rows_parts(StatKind())
