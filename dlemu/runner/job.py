"""One notion of a job: what ranks do together on a storage, from its settings to the folder of its result.

A kind of job says what is its own (`JobKind`); `run_job` is what all kinds share: prepare, start the ranks, guard,
collect, save. Nothing here prints: what goes on is an event, and what goes wrong is raised.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from datagen.errors import DatasetError, UserError
from datagen.owned import OwnFolder
from datagen.storage.storage_base import StorageSpec
from dlemu.comm import Comm, within
from dlemu.config.schema import Workload
from dlemu.results.file_names import LIVE
from dlemu.results.journal import RunJournal
from dlemu.results.kinds import kind_wanted, kinds
from dlemu.results.live import write_live_facts
from dlemu.results.measured import MeasuredRun, write_measured, write_summary
from dlemu.results.tables import ADVICE
from dlemu.runner.events import Event, JobBegan, Making, OnEvent, Saved
from dlemu.runner.ranks import Ranks, with_ranks
from dlemu.runner.request_account import counted, request_folder
from dlemu.runner.run_folder import SAVING_SECONDS, Kept, check_folder, drop_folder, drop_live, make_folder, new_folder
from dlemu.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run's complete description, checked and ready; picklable, the same on every rank."""

    workload: Workload
    ranks: int
    seed: int
    """Of everything that is drawn: shuffles, times, bytes."""
    folder: str
    """The run's folder."""
    started_at: str
    """ISO 8601 with zone."""

    @property
    def live_folder(self) -> str:
        """Where the ranks' logs lie while the run goes on."""
        return os.path.join(self.folder, LIVE)

    @property
    def request_folder(self) -> str:
        """Where processes count their requests to an object store."""
        return request_folder(self.live_folder)

    @property
    def storage_spec(self) -> StorageSpec:
        """The storage as ranks and workers use it: requests are counted."""
        return counted(self.workload, self.live_folder)


class Log(Protocol):
    """What the ranks of a run measured, collected on rank 0."""

    @property
    def journal(self) -> RunJournal: ...

    @property
    def telemetry(self) -> Telemetry: ...

    def __len__(self) -> int:
        """Return the number of rows."""
        ...


ASK_BYTES = 10e9
"""Nothing larger is made unless the user agrees."""
TRIAL_SCALE = "laptop"
"""The scale to try things at, where a workload has it."""


class NoVerdictError(DatasetError):
    """No verdict can come of the data for so many ranks; whoever asked for the run adds what leads to one."""

    def __init__(
        self, problem: str, workload: Workload, ranks: int, files_there: int, files_wanted: int, otherwise: str = ""
    ) -> None:
        """`files_there` lie in the folder as a dataset; `otherwise` is how to run it without a verdict."""
        super().__init__(problem, workload, ranks, files_there, files_wanted, otherwise)
        self.problem, self.workload, self.ranks, self.files_there = problem, workload, ranks, files_there
        self.files_wanted, self.otherwise = files_wanted, otherwise

    def __str__(self) -> str:
        return self.advised("")

    def advised(self, advice: str) -> str:
        """Return the message with advice that leads to a verdict."""
        return "\n".join(part for part in (f"{self.problem} {advice}".rstrip(), self.otherwise) if part)


@dataclass(frozen=True)
class MakeFirst:
    """What a job reads and is missing is made first."""

    size_is_given: bool
    """The user's own number of files stays."""
    allow: Callable[[Making, int], None]
    """Raises UserError where so much may not be made for so many ranks."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What is to be run."""

    load: Callable[[], Workload]
    """Returns the settings; called once, where the ranks are started or on rank 0. Raises UserError."""
    words: Sequence[str] = ()
    """The user's overrides, of which a launcher's processes need some before rank 0 has the settings."""
    make_first: MakeFirst | None = None
    wants_verdict: bool = True
    """A run of which no verdict can come is refused."""
    keeps_run: bool = False
    """The result has what was measured too."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What became of a job, as rank 0 has it; the same lies in the folder."""

    kind: str
    folder: str
    summary: Any
    """Every published number, typed as the kind has it."""
    run: Any = None
    """What was measured, where that was asked for: a `MeasuredRun`, typed as the kind has it."""


_NOTHING = nullcontext()

Notify = Callable[[Event], None]
Look = Callable[[Workload], None]
"""Looks at what a workload, which is checked, wants of the storage; raises UserError."""

T = TypeVar("T")
J = TypeVar("J", bound=Job)
L = TypeVar("L", bound=Log)
R = TypeVar("R", bound=MeasuredRun)


class JobKind(ABC, Generic[J, L, R]):
    """What is a kind of job's own. Its methods are called in the order in which they stand here."""

    name: ClassVar[str]
    """As in facts.json and summary.json."""
    prefix: ClassVar[str] = ""
    """Of the names of its folders below results/WORKLOAD/."""

    def complete(self, workload: Workload) -> Workload:
        """Return the settings with the kind's own defaults. Raises UserError for what can't be done, as they say."""
        return workload

    def making(self, workload: Workload, ranks: int, *, given: bool) -> Making:
        """Return the workload that makes first what it reads and is missing; `given`: its size is the user's own."""
        raise UserError(f"a {self.name} job reads nothing that could be made first: leave out --make")

    def caution(self, workload: Workload, ranks: int) -> str:
        """Return why so many ranks would get no verdict on a dataset that is about to be made; '' where they may."""
        return ""

    def before(self, workload: Workload, ranks: Ranks, on_event: OnEvent, *, wants_verdict: bool) -> bool:
        """Do with the ranks what must be done before the job is planned; return whether there is a job at all."""
        return True

    def looks_at(self, workload: Workload) -> str:
        """Return what of the storage is looked at before the ranks start, in words: it may not answer."""
        return f"the storage of {workload.dataset.data_folder}"

    @abstractmethod
    def plan(self, workload: Workload, ranks: int, folder: str, started_at: str, *, wants_verdict: bool) -> J:
        """Look at what lies on the storage, change nothing, and return the job.

        Raises UserError, DatasetError, NoVerdictError.
        """

    def live_names(self, rank: int) -> Iterable[str]:
        """Return the names of the files that a rank leaves in the live part of the run's folder."""
        return ()

    def made_folder(self, job: J) -> str | None:
        """Return a folder that the run makes where it is missing, and that goes when nothing was measured."""
        return None

    def begin(self, job: J) -> J:
        """Leave on the storage what the hosts look for; the run's folder is there. Raises UserError, OSError."""
        return job

    @abstractmethod
    def facts_ahead(self, job: J) -> object:
        """Return the facts of a run that has measured nothing yet, and of which nobody knows how it will end."""

    def check_host(self, job: J, local_ranks: int) -> None:
        """Raise UserError or SpaceError when this host can't do its part; called once on each."""

    def load(self, job: J) -> None:
        """Import what the ranks share, before they are forked. Raises UserError."""

    @abstractmethod
    def run_rank(self, job: J, comm: Comm, notify: Notify | None) -> L | None:
        """Run one rank to its end; return the whole run's log on rank 0, which has `notify`, None elsewhere."""

    @abstractmethod
    def salvage(self, live_folder: str) -> L | None:
        """Return what the ranks of a failed run left; None when nothing was measured yet."""

    @abstractmethod
    def result(self, job: J, log: L, failure: str | None) -> R:
        """Return the run that a job became; `failure` says why it is incomplete."""

    def clean_up(self, job: J) -> object:
        """Remove what a failed run left half done; what is returned goes to `kept`."""
        return None

    def kept(self, job: J, log: L, removed: object) -> Kept:
        """Return what is left of a run that failed."""
        return Kept(job.folder, len(log))

    def look_at_points(self) -> Look:
        """Return what looks, for one run of a sweep after another, at what it reads, before the first begins."""
        return lambda workload: None

    def own_place(self, workload: Workload, run_folder: str) -> AbstractContextManager[Sequence[str]]:
        """Return overrides that keep a run of a sweep from files of the others; on leaving, what it made there goes."""
        return nullcontext(())


AnyKind = JobKind[Any, Any, Any]


def run_alone(request: JobRequest, on_event: OnEvent, kind: AnyKind | None = None) -> JobResult | None:
    """Run a job and return its result; None where there is none, as on other ranks than rank 0.

    Of no `kind` it is the one that the workload asks for.

    Raises UserError for what is wrong before the ranks start, RunFailedError (with what was kept) after that. Under
    mpirun or srun it ends this process when a rank fails, after `RankFailed` was reported.
    """

    def body(ranks: Ranks) -> JobResult | None:
        asked = ranks.configure(lambda: checked(request.load(), kind))
        return run_job(kind or kind_for(asked), request, ranks, asked, on_event)

    return with_ranks(request.words, on_event, body)


def cautions(workload: Workload, ranks: int) -> Iterator[str]:
    """Yield what the kinds of jobs say of a dataset that is about to be made for so many ranks."""
    for kind in kinds():
        if kind.job and (caution := kind.part("job").caution(workload, ranks)):
            yield caution


def kind_for(workload: Workload) -> AnyKind:
    """Return the kind of job that a workload asks for."""
    kind: AnyKind = kind_wanted(workload).part("job")
    return kind


def checked(workload: Workload, kind: AnyKind | None = None) -> Workload:
    """Return the settings with the kind's own defaults. Raises UserError for what can't be done, as they say."""
    kind = kind or kind_for(workload)
    whole = kind.complete(workload)
    if whole.workflow.train or not whole.workflow.generate_data:  # else it leaves no result
        check_folder(whole.output.folder or new_folder(whole.model.name, kind.prefix))
    return whole


def run_job(
    kind: JobKind[J, L, R], request: JobRequest, ranks: Ranks, asked: Workload, on_event: OnEvent
) -> JobResult | None:
    """Run a job with ranks that are there and settings that were checked; return as of `run_alone`."""
    workload, wants_verdict = asked, request.wants_verdict
    if request.make_first is not None:
        workload = ranks.agree(partial(_with_making, kind, request.make_first, asked, ranks.count))
    if not kind.before(workload, ranks, on_event, wants_verdict=wants_verdict):
        return None
    job, made = ranks.agree(lambda: prepare(kind, workload, ranks.count, wants_verdict=wants_verdict))
    with (
        _exported(workload.output.openmetrics, job.folder) if workload.output.openmetrics and ranks.leads else _NOTHING,
        ranks.guard(job, partial(save_failed, kind, job, made, on_event)),
    ):
        ranks.on_each_host(lambda local_ranks: in_time(kind, workload, lambda: kind.check_host(job, local_ranks)))
        kind.load(job)
        if ranks.leads and not workload.workflow.generate_data:  # else it began before the data was made
            on_event(JobBegan(workload, ranks.count))
        return ranks.run(partial(_run_rank, kind, job, on_event, request.keeps_run))


def _exported(path: str, folder: str) -> AbstractContextManager[None]:
    """Have a process of its own write figures of the run into a file meanwhile."""
    from dlemu.runner.child_run import beside

    return beside([sys.executable, "-m", "dlemu", "watch", folder, "--openmetrics", path])


def _with_making(kind: AnyKind, make: MakeFirst, workload: Workload, ranks: int) -> Workload:
    """Return the settings that have what is missing made first, where that is allowed."""
    making: Making = in_time(kind, workload, lambda: kind.making(workload, ranks, given=make.size_is_given))
    make.allow(making, ranks)
    return making.workload


def prepare(
    kind: JobKind[J, L, R], workload: Workload, ranks: int, *, wants_verdict: bool = False
) -> tuple[J, OwnFolder]:
    """Return the job, and its folder with the live part in it; raises UserError."""
    if workload.output.openmetrics:
        from dlemu.results.openmetrics import check_replaceable

        check_replaceable(workload.output.openmetrics)
    folder = workload.output.folder or new_folder(workload.model.name, kind.prefix)
    started_at = datetime.now().astimezone().isoformat(timespec="seconds")
    job = in_time(kind, workload, lambda: kind.plan(workload, ranks, folder, started_at, wants_verdict=wants_verdict))
    names = [name for rank in range(ranks) for name in kind.live_names(rank)]
    made = make_folder(folder, ranks, names, also=kind.made_folder(job))
    try:
        job = kind.begin(job)
        write_live_facts(folder, kind.facts_ahead(job), advice=ADVICE)
    except (UserError, OSError):
        drop_folder(made)
        raise
    return job, made


def check_ahead(kind: AnyKind, workload: Workload) -> None:
    """Raise UserError for what a job would read and is missing; it makes nothing, and what the job makes may be."""
    if not workload.workflow.generate_data:
        in_time(kind, workload, lambda: kind.plan(workload, workload.ranks, "", "", wants_verdict=False))


def in_time(kind: JobKind[J, L, R], workload: Workload, look: Callable[[], T]) -> T:
    """Do what looks at the storage before the ranks start; raises DlemuError when it does not answer in time."""
    return within(workload.timeout_seconds, look, f"looking at {kind.looks_at(workload)}")


def _run_rank(kind: JobKind[J, L, R], job: J, on_event: OnEvent, keeps_run: bool, comm: Comm) -> JobResult | None:
    log = kind.run_rank(job, comm, on_event if comm.rank == 0 else None)
    if log is None:
        return None
    run = save(kind, job, log, on_event)
    return JobResult(kind=kind.name, folder=run.folder, summary=run.summary, run=run if keeps_run else None)


def save(kind: JobKind[J, L, R], job: J, log: L, on_event: OnEvent, failure: str | None = None) -> R:
    """Write the run's folder and return the run; one that failed leaves the same, marked incomplete.

    Raises SpaceError; DlemuError when the folder takes nothing for `timeout_seconds`.
    """
    run = kind.result(job, log, failure)

    def write() -> None:
        write_measured(run)  # before anything is computed of it: what was measured outlives a failure of what follows
        on_event(Saved(run))
        write_summary(run)
        drop_live(run.folder)

    within(max(SAVING_SECONDS, job.workload.timeout_seconds), write, f"writing the results into {job.folder}")
    return run


def save_failed(kind: JobKind[J, L, R], job: J, made: OwnFolder, on_event: OnEvent, failure: str) -> Kept | None:
    """Save what the ranks of a failed run left in its live folder; drop the folder when that is nothing."""
    removed = kind.clean_up(job)
    log = kind.salvage(job.live_folder)
    if log is None or not len(log):
        drop_folder(made)
        return None
    save(kind, job, log, on_event, failure)
    return kind.kept(job, log, removed)
