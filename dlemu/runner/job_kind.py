"""What a kind of job is: the interface by which its runs are planned, measured by ranks, saved, followed and read."""

from __future__ import annotations

import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from datagen.storage.storage_base import StorageSpec
from datagen.withheld import scrubbed
from dlemu.config.dump import published
from dlemu.config.schema import Workload
from dlemu.metrics.rows import Rows
from dlemu.ranks import Comm, within
from dlemu.results import FACTS, KILLED, LIVE
from dlemu.results.live import Follower, RunJournal, read_journal, salvaged
from dlemu.results.measured import MeasuredLog, MeasuredRun, RunFacts, check_hosts, read_facts, read_readings
from dlemu.runner.events import Event, Making, OnEvent, Reporter
from dlemu.runner.run_folder import Unfinished, request_folder, requests_so_far
from dlemu.telemetry import Telemetry, read_logs

if TYPE_CHECKING:
    from dlemu.runner.ranks import Ranks

Notify = Callable[[Event], None]
Look = Callable[[Workload], None]  # checks that the storage has what a workload needs; raises UserError


@dataclass(frozen=True, kw_only=True)
class Job:
    """A complete, checked description of a run; picklable, the same on every rank."""

    workload: Workload
    ranks: int
    seed: int
    """Seed of all random choices: shuffling, times, data."""
    folder: str = ""
    """The run's folder; empty until `prepare` has made it, as `started_at` is."""
    started_at: str = ""
    """ISO 8601 with time zone."""

    @property
    def live_folder(self) -> str:
        """Folder of the ranks' logs while they run."""
        return os.path.join(self.folder, LIVE)

    def live_path(self, name: str) -> str:
        """Return the path of a file in the live folder; empty on a host that does not see this folder."""
        return os.path.join(self.live_folder, name) if os.path.isdir(self.live_folder) else ""

    @property
    def timeout_seconds(self) -> float:
        """How long ranks wait for each other."""
        return self.workload.timeout_seconds

    @property
    def storage_spec(self) -> StorageSpec:
        """The storage as ranks and workers use it: requests to an object store are counted."""
        return replace(self.workload.storage_spec, account=request_folder(self.live_folder))


J = TypeVar("J", bound=Job)
F = TypeVar("F", bound=RunFacts)
N = TypeVar("N", bound=RunJournal)
R = TypeVar("R", bound=MeasuredRun)
T = TypeVar("T")


class JobKind(ABC, Generic[J, F, N, R]):
    """A kind of job: first its runs as facts and rows, then its work, by methods in the order in which they are called.

    Every kind has `plan` and `run_rank`; a class without them can read runs, but not make them.
    """

    name: ClassVar[str]
    """`kind` in facts.json and summary.json."""
    facts_type: type[F]
    journal_type: type[N]
    run_type: type[R]
    follow: Callable[[F, str], Follower]
    """Returns what tells how far a run is, given its facts from before its first row, and its live folder."""
    row_noun: ClassVar[str] = "row"
    """What messages call a row."""
    prefix: ClassVar[str] = ""
    """Prefix of run folders' names in results/WORKLOAD/."""

    @abstractmethod
    def live_rows(self, live_folder: str) -> NDArray[np.void]:
        """Return the rows that the ranks of a run have written so far into its live folder."""

    @abstractmethod
    def saved_rows(self, folder: str) -> Rows:
        """Return the rows of a saved run; raises UserError where they are missing or damaged."""

    def run_of(self, folder: str, facts: F, rows: Rows, telemetry: Telemetry) -> R:
        return self.run_type(folder, facts, rows, telemetry)

    def own_facts(self, job: J) -> dict[str, Any]:
        """Return the fields that only this kind's facts have."""
        return {}

    def check(self, run: R) -> None:
        """Raise UserError for a run with facts or rows on which any amount of memory or time could be spent."""

    def new_journal(self) -> N:
        now_ns = time.monotonic_ns()
        return self.journal_type(wall_clock_offset_ns=time.time_ns() - now_ns, started_ns=now_ns)

    def facts(self, job: J, journal: N, failure: str | None, telemetry: Telemetry = ()) -> F:
        """Return the facts of a job; `failure` says why the run is incomplete, None if it is complete."""
        return self.facts_type(
            kind=self.name,
            workload=published(job.workload),
            ranks=job.ranks,
            seed=job.seed,
            started_at=job.started_at,
            journal=journal,
            recorders=tuple(host.head for host in telemetry),
            failure=None if failure is None else scrubbed(failure, job.workload.storage.storage_options),
            **self.own_facts(job),
        )

    def salvage(self, live_folder: str) -> MeasuredLog[N] | None:
        """Return the log of a failed run from the files that its ranks left; None if nothing was measured."""
        journal = read_journal(live_folder, self.journal_type)
        if journal is None:
            return None
        journal = journal.noting(requests=requests_so_far(live_folder))
        return MeasuredLog(self.live_rows(live_folder), journal, read_logs(live_folder))

    def result(self, job: J, log: MeasuredLog[N], failure: str | None = None) -> R:
        """Return the measured run; `failure` says why it is incomplete, None if it is complete."""
        facts = self.facts(job, log.journal, failure, log.telemetry)
        return self.run_of(job.folder, facts, log.rows, log.telemetry)

    def read(self, folder: str) -> R:
        """Read a run's folder, or what a killed one left in live/, and compute all metrics anew; raises UserError."""
        path, live_path = os.path.join(folder, FACTS), os.path.join(folder, LIVE, FACTS)
        if os.path.lexists(path) or not os.path.isfile(live_path):
            facts = read_facts(path, self.facts_type)
            run = self.run_of(folder, facts, self.saved_rows(folder), read_readings(folder, facts))
        else:
            facts = read_facts(live_path, self.facts_type)
            log = salvaged(folder, self.salvage)
            if log is None or not len(log):
                raise UserError(
                    f"{folder} holds a run that was killed before its first {self.row_noun} was measured: run it again"
                )
            heads = tuple(host.head for host in log.telemetry)
            facts = replace(facts, journal=log.journal, recorders=heads, failure=KILLED)
            run = self.run_of(folder, facts, log.rows, log.telemetry)
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

    def making(self, workload: Workload, ranks: int, *, given: bool) -> Making:
        """Return the workload changed to make missing data first; `given`: the user set the size of the dataset."""
        raise UserError(f"a {self.name} job reads no data that could be made first: leave out --make")

    def before(self, workload: Workload, ranks: Ranks, on_event: OnEvent, *, wants_verdict: bool) -> bool:
        """Do what must precede the job, such as making data; return False if there is nothing else to run."""
        return True

    def looks_at(self, workload: Workload) -> str:
        """Return a phrase for the part of the storage that is accessed before the ranks start, for timeout messages."""
        return f"the storage of {workload.dataset.data_folder}"

    def in_time(self, workload: Workload, look: Callable[[], T]) -> T:
        """Call `look`, which accesses the storage before the ranks start; raises DlemuError if it takes too long."""
        return within(workload.timeout_seconds, look, f"looking at {self.looks_at(workload)}")

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> J:
        """Inspect the storage, without changing anything, and return the job; raises UserError."""
        raise NotImplementedError

    def live_names(self, rank: int) -> Iterable[str]:
        """Return the names of the files that a rank writes into the run's live folder."""
        return ()

    def made_folder(self, job: J) -> str | None:
        """Return a folder that the run creates if it is missing, and that is removed again if nothing was measured."""
        return None

    def begin(self, job: J) -> J:
        """Write to the storage what the other hosts need, and return the job. Raises UserError, OSError."""
        return job

    def check_host(self, job: J, local_ranks: int) -> None:
        """Raise UserError or SpaceError if this host can't run its ranks; called once per host."""

    def load(self, job: J) -> None:
        """Import the modules that ranks share, before they are forked. Raises UserError."""

    def run_rank(self, job: J, comm: Comm, notify: Notify | None) -> MeasuredLog[N] | None:
        """Run one rank to its end; return the log of all ranks on rank 0, else None. Only rank 0 has `notify`."""
        raise NotImplementedError

    def reporter(self, job: J, notify: Notify) -> Reporter:
        """Return what rank 0 calls at every row, so that the progress of all ranks is reported."""
        return Reporter(self.follow(self.facts(job, self.new_journal(), None), job.live_folder), notify)

    def clean_up(self, job: J) -> str:
        """Remove unfinished files of a failed run; return a phrase for what was removed or left, empty for nothing."""
        return ""

    def clean_up_elsewhere(self, job: J) -> None:
        """Remove unfinished files of a failed run on another host, if it does not share the folder with rank 0's."""

    def unfinished(self, folder: str) -> Unfinished | None:
        """Return what the killed run of a folder left in the storage, None for nothing; raises UserError, OSError."""
        return None

    def look_at_points(self) -> Look:
        """Return a function that checks the data of one run; called for all runs of a sweep before the first begins."""
        return lambda workload: None

    def own_place(self, workload: Workload, run_folder: str) -> AbstractContextManager[Sequence[str]]:
        """Return a context of overrides that give a run of a sweep files of its own, which are removed at the end."""
        return nullcontext(())


AnyKind = JobKind[Any, Any, Any, Any]
