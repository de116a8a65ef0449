"""Runs a job (ranks that together read or write a storage), from its settings to the folder with the result.

Each kind of job implements `JobKind`. `run_job` is common to all: prepare, start the ranks, collect what they measured,
save it, also after a failure. Nothing here prints: progress is reported as events, errors are raised.
"""

from __future__ import annotations

import os
import shlex
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, TypeVar

from datagen.errors import SpaceError, UserError
from datagen.owned import OwnFolder
from dlemu.config.schema import Workload
from dlemu.ranks import Comm, within
from dlemu.results.file_names import ADVICE, FACTS
from dlemu.results.kinds import kind_wanted
from dlemu.results.live import write_live_facts
from dlemu.results.measured import MeasuredLog, write_measured, write_summary
from dlemu.results.wording import count
from dlemu.runner.events import Doing, Event, JobBegan, Making, NotSaved, OnEvent, Saved
from dlemu.runner.follow import Reporter
from dlemu.runner.ranks import Ranks, with_ranks
from dlemu.runner.run_folder import (
    SAVING_SECONDS,
    Kept,
    Unfinished,
    check_folder,
    drop_folder,
    drop_live,
    make_folder,
    new_folder,
)
from dlemu.runner.run_kind import F, J, N, R, RunKind
from dlemu.runner.run_kind import Job as Job

CONFIRM_ABOVE_BYTES = 10e9
"""Larger datasets are made only if the user agrees."""
TRIAL_SCALE = "laptop"
"""The scale suggested for first tries, if a workload has it."""


@dataclass(frozen=True)
class MakeFirst:
    """Makes missing data before the job reads it."""

    size_is_given: bool
    """Whether the user set the number of files, which is then kept."""
    allow: Callable[[Making, int], None]
    """Called with what would be made and the number of ranks; raises UserError to refuse it."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What to run, and with which options."""

    load: Callable[[], Workload]
    """Returns the settings; called once, in the process that starts the ranks, or on rank 0. Raises UserError."""
    words: Sequence[str] = ()
    """The user's overrides: a launcher's processes need some of them before rank 0 has loaded the settings."""
    make_first: MakeFirst | None = None
    wants_verdict: bool = True
    """Refuse a run that could not get a verdict."""
    keeps_run: bool = False
    """The result also contains the measurements."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job on rank 0; the same is in its folder."""

    kind: str
    folder: str
    summary: Any
    """All metrics: the kind's own summary type."""
    run: Any = None
    """With `keeps_run`, the measurements, in the kind's own type of `MeasuredRun`."""


Notify = Callable[[Event], None]
Look = Callable[[Workload], None]
"""Checks that the storage has what a workload needs; raises UserError."""

T = TypeVar("T")


class JobKind(RunKind[J, F, N, R]):
    """The interface of a kind of job. Its methods are called in the order in which they are listed here."""

    prefix: ClassVar[str] = ""
    """Prefix of run folders' names in results/WORKLOAD/."""

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

    @abstractmethod
    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> J:
        """Inspect the storage, without changing anything, and return the job; raises UserError."""

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

    @abstractmethod
    def run_rank(self, job: J, comm: Comm, notify: Notify | None) -> MeasuredLog[N] | None:
        """Run one rank to its end; return the log of all ranks on rank 0, else None. Only rank 0 has `notify`."""

    def reporter(self, job: J, notify: Notify) -> Reporter:
        """Return what rank 0 calls at every row, so that the progress of all ranks is reported."""
        return Reporter(self.follow(os.path.join(job.live_folder, FACTS), job.live_folder), notify)

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


def run_alone(
    request: JobRequest, on_event: OnEvent, kind: AnyKind | None = None, on_look: Callable[[], None] | None = None
) -> JobResult | None:
    """Run a job and return its result on rank 0; None on other ranks, and if the job has no result.

    Without `kind`, the workload determines it. Raises UserError before the ranks start, and RunFailedError (with what
    was saved) afterwards. Under mpirun or srun a failing rank ends this process, after it has reported `Warned`.
    """

    def body(ranks: Ranks) -> JobResult | None:
        workload = ranks.configure(lambda: checked(request.load(), kind))
        return run_job(kind or kind_for(workload), request, ranks, workload, on_event)

    return with_ranks(request.words, on_event, body, on_look)


def kind_for(workload: Workload) -> AnyKind:
    kind: AnyKind = kind_wanted(workload).load_job().job
    return kind


def checked(workload: Workload, kind: AnyKind | None = None) -> Workload:
    """Return the workload with the kind's own defaults filled in. Raises UserError for impossible settings."""
    kind = kind or kind_for(workload)
    workload = kind.complete(workload)
    if workload.workflow.train or not workload.workflow.generate_data:  # a job that only generates data has no result
        check_folder(workload.output.folder or new_folder(workload.results_name, kind.prefix))
    return workload


def run_job(
    kind: JobKind[J, F, N, R], request: JobRequest, ranks: Ranks, workload: Workload, on_event: OnEvent
) -> JobResult | None:
    """Run a job with these ranks and a `checked` workload; returns and raises what `run_alone` does."""
    wants_verdict = request.wants_verdict
    if (make := request.make_first) is not None:
        workload = ranks.agree(partial(_with_making, kind, make, workload, ranks.count))
    if not kind.before(workload, ranks, on_event, wants_verdict=wants_verdict):
        return None
    job, made = ranks.agree(lambda: prepare(kind, workload, ranks.count, wants_verdict=wants_verdict))
    saving, cleaning = partial(save_failed, kind, job, made, on_event), partial(kind.clean_up_elsewhere, job)
    with ranks.guard(job.folder, saving, cleaning):
        in_time(kind, workload, lambda: kind.check_host(job, ranks.local_count))
        kind.load(job)
        if ranks.leads and not workload.workflow.generate_data:  # else it was reported before the data was made
            on_event(JobBegan(workload, ranks.count, job.folder))

        def run_rank(comm: Comm) -> JobResult | None:
            log = kind.run_rank(job, comm, on_event if comm.rank == 0 else None)
            if log is None:
                return None
            run = save(kind, job, log, on_event)
            kept = run if request.keeps_run else None
            return JobResult(kind=kind.name, folder=run.folder, summary=run.summary, run=kept)

        return ranks.run(run_rank)


def _with_making(kind: AnyKind, make: MakeFirst, workload: Workload, ranks: int) -> Workload:
    making: Making = in_time(kind, workload, lambda: kind.making(workload, ranks, given=make.size_is_given))
    make.allow(making, ranks)
    return making.workload


def prepare(
    kind: JobKind[J, F, N, R], workload: Workload, ranks: int, *, wants_verdict: bool = False
) -> tuple[J, OwnFolder]:
    """Return the job, and its folder, which is created together with the live folder; raises UserError."""
    folder = workload.output.folder or new_folder(workload.results_name, kind.prefix)
    started_at = datetime.now().astimezone().isoformat(timespec="seconds")
    job = in_time(kind, workload, lambda: kind.plan(workload, ranks, wants_verdict=wants_verdict))
    job = replace(job, folder=folder, started_at=started_at)
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
    """Raise UserError if data that a job reads is missing, unless the job makes it; changes nothing."""
    if not workload.workflow.generate_data:
        in_time(kind, workload, lambda: kind.plan(workload, workload.ranks, wants_verdict=False))


def in_time(kind: JobKind[J, F, N, R], workload: Workload, look: Callable[[], T]) -> T:
    """Call `look`, which accesses the storage before the ranks start; raises DlemuError if it takes too long."""
    return within(workload.timeout_seconds, look, f"looking at {kind.looks_at(workload)}")


def save(kind: JobKind[J, F, N, R], job: J, log: MeasuredLog[N], on_event: OnEvent, failure: str | None = None) -> R:
    """Write the run's folder and return the run, marked incomplete after a `failure`. Raises SpaceError, DlemuError."""
    run = kind.result(job, log, failure)

    def write() -> None:
        write_measured(run)  # first, so that the measurements survive if a later step fails
        on_event(Saved(run))
        write_summary(run)
        drop_live(run.folder)

    try:
        within(max(SAVING_SECONDS, job.workload.timeout_seconds), write, f"writing the results into {job.folder}")
    except SpaceError as error:
        if failure is None:
            on_event(NotSaved(kind.name, run.summary, run.folder))
        report = f"`dlemu report {shlex.quote(job.folder)}`"
        raise SpaceError(f"{error}; once there is space, {report} shows the result") from error
    return run


def save_failed(kind: JobKind[J, F, N, R], job: J, made: OwnFolder, on_event: OnEvent, failure: str) -> Kept | None:
    """Save what the ranks of a failed run left in its live folder; if that is nothing, remove the run's folder."""
    removed = kind.clean_up(job)
    log = kind.salvage(job.live_folder)
    if log is None or not len(log):
        drop_folder(made)
        if removed:
            on_event(Doing(removed))
        return None
    save(kind, job, log, on_event, failure)
    kept = f"kept, marked incomplete, in {job.folder}: {count(len(log), kind.row_noun)} measured before that"
    return Kept(job.folder, "; ".join(filter(None, (kept, removed))))
