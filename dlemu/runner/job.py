"""Runs a job (ranks that together read or write a storage), from its settings to the folder with the result.

`run_job` prepares the job, starts the ranks, collects their measurements and saves them, even if the run fails.
Nothing here prints: progress is reported as events, errors are raised.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from datagen.errors import SpaceError, UserError
from datagen.owned import OwnFolder
from datagen.withheld import redact_message
from dlemu.config.schema import Workload
from dlemu.ranks import Comm, within
from dlemu.results import ADVICE
from dlemu.results.kinds import kind_to_run
from dlemu.results.live import write_live_facts
from dlemu.results.measured import MeasuredLog, write_measured, write_summary
from dlemu.results.parts import JobSummary
from dlemu.results.wording import count
from dlemu.runner.events import Doing, JobBegan, NotSaved, OnEvent, Saved
from dlemu.runner.job_kind import JobKind
from dlemu.runner.ranks import OnTick, Ranks, with_ranks
from dlemu.runner.run_folder import Job, Kept, check_run_folder, drop_folder, drop_live, make_folder, new_folder

CONFIRM_ABOVE_BYTES = 10e9  # larger datasets are made only if the user agrees
TRIAL_SCALE = "laptop"  # the scale suggested for a first try, if the workload has it
_SAVING_SECONDS = 60.0  # minimum timeout for saving: writing many steps takes a while


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What to run, and with which options."""

    load: Callable[[], Workload]
    """Returns the settings; called once, in the process that starts the ranks of rank 0's host. Raises UserError."""
    overrides: Sequence[str] = ()
    """The user's overrides: under a launcher, `timeout_seconds` is read from these, and whether `ranks` is given."""
    allow_making: Callable[[Workload, int, int], None] | None = None
    """If set, missing data is made first; called before that with workload, bytes and ranks, it may raise UserError."""
    size_is_given: bool = False  # whether the user has set the number of files to make; it is then kept
    wants_verdict: bool = True  # whether to refuse a job that could not get a verdict
    keeps_run: bool = False  # whether the result also contains the measurements


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job on rank 0, which its folder also contains."""

    folder: str
    summary: JobSummary  # all metrics, in the kind's own type
    run: Any = None  # with `keeps_run`: the measurements, in the kind's own type of `MeasuredRun`


def run_job(
    request: JobRequest, on_event: OnEvent, kind: JobKind | None = None, on_tick: OnTick = lambda: None
) -> JobResult | None:
    """Run a job and return its result on rank 0's host; None on other hosts, and if the job only generates data.

    Without `kind`, the workload determines it. Raises UserError before the ranks start, and RunFailedError afterwards.
    With a launcher, a failing rank ends this process by SystemExit, after a `Warned` event.
    """
    return with_ranks(request.overrides, on_event, lambda ranks: _run(ranks, request, on_event, kind), on_tick)


def checked(workload: Workload, kind: JobKind | None = None) -> Workload:
    """Return the workload with the kind's own defaults filled in. Raises UserError for impossible settings."""
    kind = kind or kind_to_run(workload).load_job().job
    workload = kind.complete(workload)
    if workload.workflow.train or not workload.workflow.generate_data:  # a job that only generates data has no result
        check_run_folder(workload.output.folder or new_folder(workload.results_name, kind.prefix))
    return workload


def _run(ranks: Ranks, request: JobRequest, on_event: OnEvent, given_kind: JobKind | None) -> JobResult | None:
    """Run a job's `ranks` from the process that forks them; see `run_job`."""
    workload = ranks.configure(lambda: checked(request.load(), given_kind))
    kind: JobKind = given_kind or kind_to_run(workload).load_job().job
    if request.allow_making is not None:
        workload = ranks.compute_once(lambda: _with_making(request, kind, workload, ranks.count))
    if not kind.before(workload, ranks, on_event, wants_verdict=request.wants_verdict):
        return None
    job, folder = ranks.compute_once(lambda: prepare(kind, workload, ranks.count, wants_verdict=request.wants_verdict))
    save_partial = partial(save_after_failure, kind, job, folder, on_event)
    with ranks.guard(job.folder, save_partial, partial(kind.clean_up_elsewhere, job)):
        kind.in_time(workload, lambda: kind.check_host(job, ranks.local_count))
        kind.load(job)
        if ranks.leads:
            on_event(JobBegan(workload, ranks.count, job.folder))

        def run_rank(comm: Comm) -> JobResult | None:
            log = kind.run_rank(job, comm, on_event if comm.rank == 0 else None)
            if log is None:
                return None
            run = save(kind, job, log, on_event)
            return JobResult(folder=run.folder, summary=run.summary, run=run if request.keeps_run else None)

        return ranks.run(run_rank, job.timeout_seconds)


def _with_making(request: JobRequest, kind: JobKind, workload: Workload, ranks: int) -> Workload:
    """Return the workload changed to make its missing data first; raises UserError if the user refuses that."""
    assert request.allow_making is not None  # the caller has checked this
    plan_making = partial(kind.with_making, workload, ranks, size_is_given=request.size_is_given)
    changed_workload, max_bytes = kind.in_time(workload, plan_making)
    request.allow_making(changed_workload, max_bytes, ranks)
    return changed_workload


def prepare(kind: JobKind, workload: Workload, ranks: int, *, wants_verdict: bool = False) -> tuple[Any, OwnFolder]:
    """Plan a job and create its folder, with the subfolder live/; return both. Raises UserError."""
    folder = workload.output.folder or new_folder(workload.results_name, kind.prefix)
    started_at = datetime.now().astimezone().isoformat(timespec="seconds")
    job = kind.in_time(workload, lambda: kind.plan(workload, ranks, wants_verdict=wants_verdict))
    job = replace(job, folder=folder, started_at=started_at)
    names = [name for rank in range(ranks) for name in kind.live_names(rank)]
    own_folder = make_folder(folder, ranks, names, storage_folder=kind.made_folder(job))
    try:
        kind.begin(job)
        write_live_facts(folder, kind.facts(job), advice=ADVICE)
    except (UserError, OSError):
        drop_folder(own_folder)
        raise
    return job, own_folder


def save(kind: JobKind, job: Job, log: MeasuredLog[Any], on_event: OnEvent, failure: str | None = None) -> Any:
    """Write a run's results and return the run; `failure` marks it as incomplete. Raises SpaceError, DlemuError."""
    run = kind.run_from_log(job.folder, kind.facts(job), log, failure)

    def write() -> None:
        write_measured(run)  # first, so that the measurements survive if a later step fails
        on_event(Saved(run))
        write_summary(run)
        drop_live(run.folder)

    try:
        within(max(_SAVING_SECONDS, job.workload.timeout_seconds), write, f"writing the results into {job.folder}")
    except SpaceError as error:
        if failure is None:
            on_event(NotSaved(kind.name, run.summary, run.folder))
        report = f"`dlemu report {shlex.quote(job.folder)}`"
        raise SpaceError(f"{error}; once there is space, {report} shows the result") from error
    return run


def save_after_failure(kind: JobKind, job: Job, folder: OwnFolder, on_event: OnEvent, failure: str) -> Kept | None:
    """Save what a failed run has measured, from its live folder; if that is nothing, drop `folder` and return None."""
    clean_up_note = kind.clean_up(job)
    log = kind.salvage(job.live_folder)
    if log is None:
        drop_folder(folder)
        if clean_up_note:
            on_event(Doing(clean_up_note))
        return None
    save(kind, job, log, on_event, redact_message(failure, job.workload.storage.storage_options))
    note = f"kept, marked incomplete, in {job.folder}: {count(len(log), kind.row_noun)} measured before that"
    return Kept(job.folder, "; ".join(filter(None, (note, clean_up_note))))
