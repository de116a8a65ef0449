"""Base class of kinds of jobs whose ranks append rows of integers: a kind only measures, and summarises rows.

Training and checkpoints have their own logs. A kind based on this has a run folder like theirs: it is saved even if a
rank is killed, and if saving was impossible, it is read from the ranks' files in live/.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from datagen.errors import UserError
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
from dlemu.results.kinds import JobParts, kind_named
from dlemu.results.live import Figure, Follower, Progress, RunJournal
from dlemu.results.measured import MeasuredLog, MeasuredRun, RunFacts, common_fields
from dlemu.results.parts import JobSummary
from dlemu.results.tables import read_rows, rows_table, write_table
from dlemu.results.wording import count
from dlemu.runner.job_kind import Job, JobKind, Notify
from dlemu.runner.recording import RankRecord
from dlemu.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class RowsSummary(JobSummary):
    """The common part of these jobs' summaries; each kind adds its metrics in a subclass, and declares them there."""

    outcome: Outcome | None = None
    """None: the run neither passes nor fails."""


@dataclass(frozen=True, eq=False)
class RowsRun(MeasuredRun):
    """One measured run."""

    rows: Rows
    kind: RowsKind

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


class RowsKind(JobKind[Job, RunFacts, RunJournal, RowsRun]):
    """A kind of job whose ranks append rows of integers."""

    facts_type, journal_type, run_type = RunFacts, RunJournal, RowsRun
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

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> Job:
        return Job(workload=workload, ranks=ranks, seed=secrets.randbits(48))

    def live_names(self, rank: int) -> Iterable[str]:
        return (f"rows_{rank:05d}",)

    def run_rank(self, job: Job, comm: Comm, notify: Notify | None) -> MeasuredLog[RunJournal] | None:
        record = RankRecord(job, comm, self.new_journal(), self.looks_at(job.workload))
        record.start(lambda: self.watched_folders(job))
        folder = next(iter(self.watched_folders(job)), None)
        record.describe(lambda: None if folder is None else describe_folder(existing_folder(folder)))
        (log_name,) = self.live_names(comm.rank)
        log = RowLog(self.dtype, job.live_path(log_name))
        comm.all_reduce_max(0)  # a barrier: all ranks begin together
        self.measure(job, comm, log, notify)
        log.close()
        record.stop()
        return record.collect(log.rows)

    def live_rows(self, live_folder: str) -> Rows:
        names = [name for name in os.listdir(live_folder) if name.startswith("rows_")]
        return read_row_logs(live_folder, names, self.dtype)

    def saved_rows(self, folder: str) -> Rows:
        return read_rows(folder, self.table, self.dtype)

    def run_of(self, folder: str, facts: RunFacts, rows: Any, telemetry: Telemetry) -> RowsRun:
        return RowsRun(folder, facts, rows, telemetry, self)

    def follow(self, facts: RunFacts, live_folder: str) -> Follower:
        return partial(self._progress, facts, live_folder)

    def _progress(self, facts: RunFacts, live_folder: str) -> Progress | None:
        """Return how far a run is, with those metrics of its rows so far that sweeps show."""
        log = self.salvage(live_folder)
        if log is None or not len(log):
            return None
        run = self.run_of("", replace(facts, journal=log.journal), log.rows, log.telemetry)
        parts = kind_named(self.name).load_job()
        values: Mapping[str, Value] = {}
        with contextlib.suppress(UserError):  # rows that are not complete yet
            values = parts.figures(run).metrics
        metrics = [metric for metric in parts.catalogue.in_sweeps if metric.name in values]
        figures = tuple(Figure(metric.title, values[metric.name].mean, metric.unit) for metric in metrics)
        return Progress(at=count(len(log), self.row_noun), figures=figures)


def rows_parts(
    job: RowsKind,
    *,
    judged: str = "",
    note: str = "",
    conditions: Callable[..., Conditions] | None = None,
    limited_by: Callable[[Any], str | None] = lambda summary: None,
    screen: Callable[[Any, str], Any] | None = None,
    sections: Callable[[Any, str], Iterable[Any]] | None = None,
    charts: Callable[[Any, str], Iterable[tuple[str, Any]]] | None = None,
) -> JobParts:
    """Return the parts of a kind of job; figures, conditions and pages come from its summary unless they are given.

    `judged` and `note` are those of its catalogue; `limited_by` takes a summary; for the others see `JobParts`.
    """

    def figures(run: RowsRun) -> JobFigures:
        summary = run.summary
        limit = limited_by(summary)
        values = {metric.name: getattr(summary, metric.name) for metric in catalogue}
        return JobFigures(
            kind=job.name,
            workload=summary.workload,
            ranks=summary.ranks,
            verdict=summary.verdict,
            outcome=summary.outcome,
            limited_by={} if limit is None else {RUN: limit},
            metrics={name: Value(value) for name, value in values.items() if value is not None},
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
        conditions=conditions or (lambda summary, facts: Conditions(title=job.name)),
    )
