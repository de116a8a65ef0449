"""What a kind of job measures: how its run is made from what the ranks logged, and read back, also after a kill."""

from __future__ import annotations

import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from datagen.storage.storage_base import StorageSpec
from datagen.withheld import scrubbed
from dlemu.config.dump import published
from dlemu.config.schema import Workload
from dlemu.metrics.rows import Rows
from dlemu.results.file_names import FACTS, KILLED, LIVE
from dlemu.results.live import Follower, RunJournal, read_journal, salvaged
from dlemu.results.measured import MeasuredLog, MeasuredRun, RunFacts, check_hosts, read_facts, read_readings
from dlemu.runner.run_folder import request_folder, requests_so_far
from dlemu.telemetry import Telemetry, read_logs


@dataclass(frozen=True, kw_only=True)
class Job:
    """A complete, checked description of a run; picklable, the same on every rank."""

    workload: Workload
    ranks: int
    seed: int
    """Seed of all random choices: shuffling, times, data."""
    folder: str = ""
    """The run's folder; empty until it is made, as `started_at`."""
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
    def storage_spec(self) -> StorageSpec:
        """The storage as ranks and workers use it: requests to an object store are counted."""
        return replace(self.workload.storage_spec, account=request_folder(self.live_folder))


J = TypeVar("J", bound=Job)
F = TypeVar("F", bound=RunFacts)
N = TypeVar("N", bound=RunJournal)
R = TypeVar("R", bound=MeasuredRun)


class RunKind(ABC, Generic[J, F, N, R]):
    """The runs of a kind of job: their facts, rows and metrics."""

    name: ClassVar[str]
    """`kind` in facts.json and summary.json."""
    facts_type: type[F]
    journal_type: type[N]
    run_type: type[R]
    follow: Callable[[str, str], Follower]
    """Returns what follows a run, given the path of the facts from before its first row, and its live folder.

    Raises UserError for damaged facts.
    """
    row_noun: ClassVar[str] = "row"
    """What messages call a row."""

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

    def facts_ahead(self, job: J) -> F:
        """Return the facts of a killed run: they are written before the run, and remain if it is killed."""
        return self.facts(job, self.new_journal(), KILLED)

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
        path, live = os.path.join(folder, FACTS), os.path.join(folder, LIVE, FACTS)
        if os.path.lexists(path) or not os.path.isfile(live):
            facts = read_facts(path, self.facts_type)
            run = self.run_of(folder, facts, self.saved_rows(folder), read_readings(folder, facts))
        else:
            facts, log = read_facts(live, self.facts_type), salvaged(folder, self.salvage)
            if log is None or not len(log):
                first = f"before its first {self.row_noun} was measured"
                raise UserError(f"{folder} holds a run that was killed {first}: run it again")
            heads = tuple(host.head for host in log.telemetry)
            facts = replace(facts, journal=log.journal, recorders=heads, failure=KILLED)
            run = self.run_of(folder, facts, log.rows, log.telemetry)
        self.check(run)
        check_hosts(run)
        try:
            _ = run.summary
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError, struct.error) as error:
            what = f"its numbers can't be computed ({type(error).__name__}: {error})"
            raise UserError(f"{folder} is damaged: {what}; copy it again") from error
        return run
