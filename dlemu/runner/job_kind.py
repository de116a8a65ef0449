"""`JobKind`, the base class of kinds of jobs: how their runs are planned, measured by ranks, followed, saved and read.

Each rank logs rows of integers, and appends every row at once to a file in the run's subfolder live/. If a rank is
killed, the run is saved from these files; if the whole run is killed, they are read in place of a saved run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.config.dump import published
from dlemu.config.schema import Workload
from dlemu.machine.environment import describe_folder, existing_folder
from dlemu.metrics.rows import Rows
from dlemu.ranks import Comm, within
from dlemu.ranks.row_log import RowLog, read_row_logs, row_log_name
from dlemu.results import FACTS, KILLED, LIVE
from dlemu.results.answer_files import decode_versioned
from dlemu.results.kinds import kind_named
from dlemu.results.live import Figure, Follower, Progress, RunJournal, read_journal, read_live
from dlemu.results.measured import MeasuredLog, MeasuredRun, RunFacts, check_hosts, read_telemetry
from dlemu.results.tables import read_rows, rows_table, write_table
from dlemu.results.wording import count
from dlemu.runner.events import Event, OnEvent, Reporter
from dlemu.runner.recording import RankRecord
from dlemu.runner.run_folder import Job, Unfinished, requests_so_far
from dlemu.telemetry import Telemetry, read_logs

if TYPE_CHECKING:
    from dlemu.runner.ranks import Ranks

Notify = Callable[[Event], None]
DataCheck = Callable[[Workload], object]  # raises UserError if a run can't succeed, such as without its dataset
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RowsRun(MeasuredRun):
    """A measured run of a kind that defines no type of its own for its runs."""

    rows: NDArray[np.void]
    kind: JobKind

    @cached_property
    def summary(self) -> Any:
        """All metrics, computed from the other fields."""
        return self.kind.summarise(self)

    def write_rows(self) -> None:
        write_table(self.folder, self.kind.table, rows_table(self.rows, self.kind.columns))


class JobKind:
    """A kind of job; a subclass overrides the methods in which it differs from the defaults here.

    The methods before `complete` read and write runs. `complete` and the following ones run a job, and stand in the
    order in which they are called; most of them take the `job` that `plan` has returned.

    A run consists of its facts (settings and the like, from before its first row) and its log: the rows of all ranks,
    the journal (what rank 0 noted during the run) and the telemetry.

    Most kinds define `columns`, `measure` and `summarise`. A kind that has its own types for facts, runs or logs
    overrides `run_of` and `run_rank` instead of `measure` and `summarise`.
    """

    name: ClassVar[str]
    """`kind` in facts.json and summary.json."""
    columns: ClassVar[Mapping[str, str]]
    """Name of each column of a row -> its meaning; one column is `rank`."""
    summary_type: ClassVar[type[Any]]
    facts_type: ClassVar[type[Any]] = RunFacts
    journal_type: ClassVar[type[Any]] = RunJournal
    row_noun: ClassVar[str] = "row"
    """Name of a row in messages."""
    prefix: ClassVar[str] = ""
    """Prefix of run folders' names in results/WORKLOAD/."""

    @property
    def dtype(self) -> np.dtype[np.void]:
        return np.dtype([(name, np.int64) for name in self.columns])

    @property
    def table(self) -> str:
        return f"{self.name}.parquet"

    def live_rows(self, live_folder: str) -> Any:
        """Return the rows that the ranks have written into the live folder so far."""
        return read_row_logs(live_folder, self.dtype)

    def saved_rows(self, folder: str) -> Rows:
        """Return the rows of a saved run; raises UserError if they are missing or damaged."""
        return read_rows(folder, self.table, self.dtype)

    def run_of(self, folder: str, facts: Any, rows: Any, telemetry: Telemetry) -> Any:
        """Return the `MeasuredRun` of these measurements."""
        return RowsRun(folder, facts, rows, telemetry, self)

    def summarise(self, run: RowsRun) -> Any:
        """Return all metrics of a run; raises UserError for rows that no run can have produced."""
        raise NotImplementedError

    def own_facts(self, job: Any) -> dict[str, Any]:
        """Return the values of the fields that this kind adds to `RunFacts`."""
        return {}

    def check(self, run: Any) -> None:
        """Raise UserError for a run from an unknown source whose analysis could take unbounded memory or time."""

    def follow(self, facts: Any, live_folder: str) -> Follower:
        """Return a function that reads a run's progress from its live folder; `facts` are from before its first row."""
        return partial(self.progress, facts, live_folder)

    def progress(self, facts: Any, live_folder: str) -> Progress | None:
        """Return the progress of a run, with its metrics so far (those that sweeps show); None before its first row."""
        log = self.salvage(live_folder)
        if log is None:
            return None
        run = self.run_from_log("", facts, log, KILLED)
        job_parts = kind_named(self.name).load_job()
        figures: tuple[Figure, ...] = ()
        with contextlib.suppress(UserError):  # the rows so far may be too few for metrics
            values = job_parts.figures(run).metrics
            metrics = [metric for metric in job_parts.catalogue.in_sweeps if metric.name in values]
            figures = tuple(Figure(metric.title, values[metric.name].mean, metric.unit) for metric in metrics)
        return Progress(at=count(len(log), self.row_noun), figures=figures)

    def new_journal(self) -> Any:
        now_ns = time.monotonic_ns()
        return self.journal_type(wall_clock_offset_ns=time.time_ns() - now_ns, started_ns=now_ns)

    def facts(self, job: Any) -> Any:
        """Return the facts of a run before its first row; `run_from_log` completes them."""
        return self.facts_type(
            kind=self.name,
            workload=published(job.workload),
            ranks=job.ranks,
            seed=job.seed,
            started_at=job.started_at,
            journal=self.new_journal(),
            failure=KILLED,
            **self.own_facts(job),
        )

    def salvage(self, live_folder: str) -> MeasuredLog[Any] | None:
        """Return the log of a failed run from the files that its ranks left; None if nothing was measured."""
        journal = read_journal(live_folder, self.journal_type)
        if journal is None or not len(rows := self.live_rows(live_folder)):
            return None
        return MeasuredLog(rows, journal.noting(requests=requests_so_far(live_folder)), read_logs(live_folder))

    def run_from_log(self, folder: str, facts: Any, log: MeasuredLog[Any], failure: str | None) -> Any:
        """Return the run with this log and with facts from before its first row; `failure` says why it ended early."""
        heads = tuple(host.head for host in log.telemetry)
        facts = replace(facts, journal=log.journal, recorders=heads, failure=failure)
        return self.run_of(folder, facts, log.rows, log.telemetry)

    def read(self, folder: str) -> Any:
        """Read a run from its folder, or from live/ if it was killed, and recompute all metrics; raises UserError."""
        path = os.path.join(folder, FACTS)
        live_path = os.path.join(folder, LIVE, FACTS)
        if os.path.lexists(path) or not os.path.isfile(live_path):
            facts = decode_versioned(path, self.facts_type)
            run = self.run_of(folder, facts, self.saved_rows(folder), read_telemetry(folder, facts))
        else:
            facts = decode_versioned(live_path, self.facts_type)
            log = read_live(folder, self.salvage)
            if log is None:
                raise UserError(
                    f"{folder} holds a run that was killed before its first {self.row_noun} was measured: run it again"
                )
            run = self.run_from_log(folder, facts, log, KILLED)
        self.check(run)
        check_hosts(run)
        try:
            _ = run.summary
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError, struct.error) as error:
            reason = f"its numbers can't be computed ({type(error).__name__}: {error})"
            raise UserError(f"{folder} is damaged: {reason}; copy it again") from error
        return run

    def complete(self, workload: Workload) -> Workload:
        """Return the workload with the kind's own defaults filled in. Raises UserError for impossible settings."""
        return workload

    def with_making(self, workload: Workload, ranks: int, *, size_is_given: bool) -> tuple[Workload, int]:
        """For `--make`: return the workload changed so that missing data is made first, and the most bytes to make.

        If `size_is_given`, the user has set the size of the dataset, and it is kept.
        """
        raise UserError(f"a {self.name} job reads no data that could be made first: leave out --make")

    def before(self, workload: Workload, ranks: Ranks, on_event: OnEvent, *, wants_verdict: bool) -> bool:
        """Do what must be done before `plan`, such as making data. Return False if the job ends with that."""
        return True

    def looks_at(self, workload: Workload) -> str:
        """Return the storage's name for messages about a storage that hangs."""
        return f"the storage of {workload.dataset.data_folder}"

    def in_time(self, workload: Workload, access: Callable[[], T]) -> T:
        """Return the result of `access`, which accesses the storage; raises DlemuError after `timeout_seconds`."""
        return within(workload.timeout_seconds, access, f"looking at {self.looks_at(workload)}")

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> Job:
        """Inspect the storage without changing it, and return the job; raises UserError."""
        return Job(workload=workload, ranks=ranks, seed=secrets.randbits(48))

    def live_names(self, rank: int) -> Iterable[str]:
        """Return the names of the files that a rank writes into the run's live folder."""
        return (row_log_name(rank),)

    def made_folder(self, job: Any) -> str | None:
        """Return a folder in the storage that the run may create, to be removed if nothing is measured; else None."""
        return None

    def begin(self, job: Any) -> None:
        """Prepare the storage on rank 0's host, such as by claiming names of files. Raises UserError, OSError."""

    def check_host(self, job: Any, local_ranks: int) -> None:
        """Raise UserError or SpaceError if this host can't run its `local_ranks` ranks; called on each host."""

    def load(self, job: Any) -> None:
        """Import, before the ranks are forked, the modules that they share. Raises UserError."""

    def watched_folders(self, job: Any) -> Iterator[str]:
        """Yield local folders whose devices the recorder watches; the result describes the file system of the first."""
        return iter(())

    def run_rank(self, job: Any, comm: Comm, notify: Notify | None) -> MeasuredLog[Any] | None:
        """Run one rank to its end; return the log of all ranks on rank 0, else None. Only rank 0 has `notify`."""
        record = RankRecord(job, comm, self.new_journal(), self.looks_at(job.workload))
        record.start(lambda: self.watched_folders(job))
        folder = next(iter(self.watched_folders(job)), None)
        record.describe(lambda: None if folder is None else describe_folder(existing_folder(folder)))
        log = RowLog(self.dtype, job.live_path(row_log_name(comm.rank)))
        comm.all_reduce_max(0)  # a barrier: all ranks begin together
        self.measure(job, comm, log, notify)
        log.close()
        record.stop()
        return record.collect(log.rows)

    def measure(self, job: Any, comm: Comm, log: RowLog, notify: Notify | None) -> None:
        """Measure this rank's part and add rows to `log`; only rank 0 has `notify`. Raises DlemuError."""
        raise NotImplementedError

    def reporter(self, job: Any, notify: Notify) -> Reporter:
        """Return a reporter of the progress of all ranks; rank 0 calls it at every row."""
        return Reporter(self.follow(self.facts(job), job.live_folder), notify)

    def clean_up(self, job: Any) -> str:
        """Remove a failed run's unfinished files; return a phrase that names what was removed or left, if anything."""
        return ""

    def clean_up_elsewhere(self, job: Any) -> None:
        """Remove a failed run's unfinished files on another host, if it does not share their folder with rank 0's."""

    def unfinished(self, folder: str) -> Unfinished | None:
        """Return the useless files that a killed run left in the storage, or None; raises UserError, OSError."""
        return None

    def look_at_points(self) -> DataCheck:
        """Return a function that checks a run's data; a sweep calls it for each of its runs before the first begins."""
        return lambda workload: None

    def own_place(self, workload: Workload, run_folder: str) -> AbstractContextManager[Sequence[str]]:
        """Context of one run of a sweep: yields overrides that give it files of its own, and finally removes them."""
        return nullcontext(())
