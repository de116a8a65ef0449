"""Base class of kinds of jobs whose ranks append rows of integers: a kind only measures, and summarises rows.

Training and checkpoints have their own logs. A kind based on this has a run folder like theirs: it is saved even if a
rank is killed, and if saving was impossible, it is read from the ranks' files in live/.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from datagen.errors import UserError
from datagen.withheld import scrubbed
from dlemu.config.dump import published
from dlemu.config.schema import Workload
from dlemu.machine.environment import describe_folder, existing_folder
from dlemu.metrics.catalogue import RUN, Catalogue, declared
from dlemu.metrics.findings import Confidence as Confidence  # kinds based on this one name these five
from dlemu.metrics.findings import LimitedBy as LimitedBy
from dlemu.metrics.verdict import Outcome as Outcome
from dlemu.ranks import Comm
from dlemu.ranks.row_log import RowLog as RowLog
from dlemu.ranks.row_log import Rows as Rows
from dlemu.ranks.row_log import read_row_logs
from dlemu.results.figures import Conditions, JobFigures, Value
from dlemu.results.file_names import FACTS, KILLED
from dlemu.results.kinds import JobParts
from dlemu.results.live import RunJournal, read_journal
from dlemu.results.measured import (
    RunFacts,
    check_hosts,
    common_fields,
    computed,
    read_facts,
    read_live,
    read_readings,
    sent_state,
)
from dlemu.results.parts import JobSummary
from dlemu.results.progress import Figure, Progress
from dlemu.results.tables import read_rows, rows_table, write_table
from dlemu.results.wording import count
from dlemu.runner.job import Job, JobKind, Notify
from dlemu.runner.recording import Recording, describe_hosts, recorded, recorder_for, stopped
from dlemu.telemetry import Telemetry, read_logs


def row_log_name(rank: int) -> str:
    return f"rows_{rank:05d}"


@dataclass(frozen=True, kw_only=True)
class RowsSummary(JobSummary):
    """The common part of these jobs' summaries; each kind adds its metrics in a subclass, and declares them there."""

    outcome: Outcome | None = None
    """None: the run neither passes nor fails."""


@dataclass(frozen=True)
class RowsLog:
    """What the ranks measured, collected on rank 0."""

    rows: Rows
    journal: RunJournal
    telemetry: Telemetry = ()

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class RowsRun:
    """One measured run."""

    folder: str
    facts: RunFacts
    rows: Rows
    """Rows of all ranks; times are of each rank's own clock."""
    telemetry: Telemetry
    kind: RowsKind

    __getstate__ = sent_state

    @cached_property
    def summary(self) -> Any:
        """All metrics, computed from the other fields."""
        return self.kind.summarise(self)

    def write_rows(self) -> None:
        """Write the table of the rows (Parquet); raises SpaceError."""
        write_table(self.folder, self.kind.table, rows_table(self.rows, self.kind.columns))

    def common_fields(self) -> dict[str, Any]:
        """Return the fields of RowsSummary that every run has, without the verdict."""
        return {"kind": self.kind.name, **common_fields(self.facts)}


class RowsKind(JobKind[Job, RowsLog, RowsRun]):
    """A kind of job whose ranks append rows of integers."""

    columns: ClassVar[Mapping[str, str]]
    """Column name -> meaning; one column is `rank`."""
    summary_type: ClassVar[type[RowsSummary]]

    @property
    def dtype(self) -> np.dtype[np.void]:
        return np.dtype([(name, np.int64) for name in self.columns])

    @property
    def table(self) -> str:
        return f"{self.name}.parquet"

    @abstractmethod
    def measure(self, job: Job, comm: Comm, log: RowLog, notify: Notify | None) -> None:
        """Measure this rank's part and add rows to `log`; only rank 0 has `notify`. Raises DlemuError."""

    @abstractmethod
    def summarise(self, run: RowsRun) -> RowsSummary:
        """Return all metrics of a run; raises UserError for rows that no run can have produced."""

    def watched_folders(self, job: Job) -> Iterator[str]:
        """Yield local folders whose devices the recorder watches; the result describes the file system of the first."""
        return iter(())

    def plan(self, workload: Workload, ranks: int, folder: str, started_at: str, *, wants_verdict: bool) -> Job:
        return Job(workload=workload, ranks=ranks, seed=secrets.randbits(48), folder=folder, started_at=started_at)

    def live_names(self, rank: int) -> Iterable[str]:
        return (row_log_name(rank),)

    def facts_ahead(self, job: Job) -> RunFacts:
        return self._facts(job, _new_journal(), KILLED)

    def _facts(self, job: Job, journal: RunJournal, failure: str | None, telemetry: Telemetry = ()) -> RunFacts:
        return RunFacts(
            kind=self.name,
            workload=published(job.workload),
            ranks=job.ranks,
            seed=job.seed,
            started_at=job.started_at,
            journal=journal,
            recorders=tuple(host.head for host in telemetry),
            failure=None if failure is None else scrubbed(failure, job.workload.storage.storage_options),
        )

    def run_rank(self, job: Job, comm: Comm, notify: Notify | None) -> RowsLog | None:
        recorder = recorder_for(
            job.workload.telemetry,
            lambda: self.watched_folders(job),
            job.live_folder,
            comm,
            timeout_seconds=job.workload.timeout_seconds,
            what=self.looks_at(job.workload),
        )
        journal = _new_journal()
        described = describe_hosts(comm)
        if described is not None:
            folder = next(iter(self.watched_folders(job)), None)
            storage = None if folder is None else describe_folder(existing_folder(folder))
            journal = journal.noting(hosts=described[0], rank_nodes=described[1], storage=storage)
            journal.save(job.live_folder)
        sees_folder = os.path.isdir(job.live_folder)
        log = RowLog(self.dtype, os.path.join(job.live_folder, row_log_name(comm.rank)) if sees_folder else "")
        comm.all_reduce_max(0)  # a barrier: all ranks begin together
        self.measure(job, comm, log, notify)
        log.close()
        ended_ns = comm.all_reduce_max(time.monotonic_ns())
        parts: list[tuple[Rows, Recording]] | None = comm.gather((log.rows, stopped(recorder)))
        if parts is None:
            return None
        lost, telemetry = recorded([recording for _, recording in parts], journal)
        noted = journal.noting(ended_ns=ended_ns, lost_recorders=lost)
        return RowsLog(np.concatenate([rows for rows, _ in parts]), noted, telemetry)

    def salvage(self, live_folder: str) -> RowsLog | None:
        journal = read_journal(live_folder, RunJournal)
        if journal is None:
            return None
        names = [name for name in os.listdir(live_folder) if name.startswith("rows_")]
        return RowsLog(read_row_logs(live_folder, names, self.dtype), journal, read_logs(live_folder))

    def result(self, job: Job, log: RowsLog, failure: str | None) -> RowsRun:
        facts = self._facts(job, log.journal, failure, log.telemetry)
        return RowsRun(job.folder, facts, log.rows, log.telemetry, self)

    def read(self, folder: str) -> RowsRun:
        """Read a run's folder and recompute all metrics; raises UserError for a damaged one."""
        if os.path.lexists(os.path.join(folder, FACTS)):
            facts = read_facts(os.path.join(folder, FACTS), RunFacts)
            rows = read_rows(folder, self.table, self.dtype)
            run = RowsRun(folder, facts, rows, read_readings(folder, facts), self)
        else:
            facts, log = read_live(folder, RunFacts, self.salvage, "row")
            run = RowsRun(folder, facts, log.rows, log.telemetry, self)
        check_hosts(run, rows=len(run.rows))
        return computed(run)


def _new_journal() -> RunJournal:
    now_ns = time.monotonic_ns()
    return RunJournal(wall_clock_offset_ns=time.time_ns() - now_ns, started_ns=now_ns)


class LiveRows:
    """Follows a run of any such kind, by the metrics of its rows so far that sweeps show."""

    def __init__(self, parts: JobParts, facts_path: str, live_folder: str) -> None:
        """Raises UserError for damaged facts."""
        self._parts, self._folder, self._facts = parts, live_folder, read_facts(facts_path, RunFacts)

    def look(self) -> Progress | None:
        """Return the run's progress; None before the first row."""
        log = self._parts.job.salvage(self._folder)
        if log is None or not len(log):
            return None
        run = RowsRun(self._folder, replace(self._facts, journal=log.journal), log.rows, log.telemetry, self._parts.job)
        measured: Mapping[str, Value] = {}
        with contextlib.suppress(UserError):  # rows that are not complete yet
            measured = self._parts.figures(run).metrics
        shown = [metric for metric in self._parts.catalogue.in_sweeps if metric.name in measured]
        return Progress(
            at=count(len(log), "row"),
            figures=tuple(Figure(metric.title, measured[metric.name].mean, metric.unit) for metric in shown),
        )


def rows_parts(
    job: RowsKind,
    *,
    judged: str = "",
    note: str = "",
    conditions: Callable[[Any], Conditions] | None = None,
    limited_by: Callable[[Any], str | None] = lambda summary: None,
    screen: Callable[[Any, str], Any] | None = None,
    sections: Callable[[Any, str], Iterable[Any]] | None = None,
    charts: Callable[[Any, str], Iterable[tuple[str, Any]]] | None = None,
) -> JobParts:
    """Return the code of a kind of job: what is not given comes from its summary.

    `judged` and `note` are those of its catalogue; `limited_by` takes a summary; for the others see `JobParts`.
    """

    def figures(run: RowsRun) -> JobFigures:
        summary, what = run.summary, limited_by(run.summary)
        known = {metric.name: getattr(summary, metric.name) for metric in catalogue}
        return JobFigures(
            kind=job.name,
            workload=summary.workload,
            ranks=summary.ranks,
            verdict=summary.verdict,
            outcome=summary.outcome,
            limited_by={} if what is None else {RUN: what},
            metrics={name: Value(value) for name, value in known.items() if value is not None},
        )

    def own_conditions(summary: RowsSummary) -> Conditions:
        environment = summary.environment
        return Conditions(
            title=job.name, started_at=summary.started_at, hosts=environment.hosts, storage=environment.storage
        )

    catalogue = Catalogue(metrics=declared(job.summary_type), judged=judged, note=note)
    return JobParts(
        read=job.read,
        answer_type=job.summary_type,
        screen=screen,
        sections=sections,
        charts=charts,
        job=job,
        catalogue=catalogue,
        figures=figures,
        conditions=conditions or own_conditions,
    )
