"""A training run, from its job or its folder: its measurements, and the summary computed from them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from datagen.engines import READER_VERSION
from datagen.errors import UserError
from datagen.withheld import public_text, scrubbed
from dlemu.config.dump import published
from dlemu.config.validate import check
from dlemu.jobs.training.analyse import analyse
from dlemu.jobs.training.measured import Facts, Journal, MeasuredTraining, Series
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.steplog import STEP_DTYPE, STEPS, StepRows, check_steps, read_log, read_steps
from dlemu.jobs.training.summary import Summary
from dlemu.plan.streams import StreamPlan
from dlemu.results.file_names import FACTS, LIVE
from dlemu.results.live import read_journal
from dlemu.results.measured import check_hosts, computed, read_facts, read_live, read_readings, sent_state
from dlemu.runner.run_folder import requests_so_far
from dlemu.telemetry import RecorderHead, Telemetry, read_logs


@dataclass(frozen=True, eq=False)
class Run(MeasuredTraining):
    """One training run."""

    __getstate__ = sent_state

    @cached_property
    def summary(self) -> Summary:
        """Every published number, computed from the measurements."""
        return analyse(self)

    def device_series(self, probe: str, *metrics: str) -> list[Series]:
        """Return `series` of the counted devices only: the file system's own, not those below, with the same bytes."""
        found, telemetry = self.series(probe, *metrics), self.summary.telemetry
        if telemetry is None or not telemetry.devices:
            return found
        counted = {(device.host, device.name) for device in telemetry.devices if device.counted}
        return [series for series in found if (series.host, series.source) in counted]


@dataclass(frozen=True)
class RunLog:
    """What a run measured; every number of its result is computed from this."""

    rows: StepRows
    """The step logs of all ranks."""
    journal: Journal
    telemetry: Telemetry = ()
    """Readings of the telemetry recorders, by host."""

    def __len__(self) -> int:
        return len(self.rows)


def make_run(job: TrainingJob, log: RunLog, failure: str | None = None) -> Run:
    """Return a job's run; `failure` is the reason if it is incomplete."""
    facts = make_facts(job, log, failure, recorders=tuple(host.head for host in log.telemetry))
    return Run(job.folder, facts, log.rows, log.telemetry)


def make_facts(job: TrainingJob, log: RunLog, failure: str | None, *, recorders: tuple[RecorderHead, ...]) -> Facts:
    """Return the facts of a job's run; one that was stopped early gets `train.total_training_steps` of what it took."""
    early = log.journal.stopped_early
    if early is not None:
        job = job.cut_to(early.steps)
    plan = job.train_plan
    return Facts(
        workload=published(job.workload),
        ranks=job.ranks,
        seed=job.seed,
        started_at=job.started_at,
        plan=None if isinstance(plan, StreamPlan) else plan,
        stream_plan=plan if isinstance(plan, StreamPlan) else None,
        num_files_train=job.found.train.num_files,
        num_files_eval=job.found.valid.num_files if job.found.valid else 0,
        num_samples_per_file=job.found.train.num_samples_per_file,
        total_bytes=job.found.total_bytes,
        dataset_notes=tuple(map(public_text, job.found.notes)),
        batches_ahead=job.batches_ahead,
        reader_version=READER_VERSION,
        loader_notes=job.loader_notes,
        journal=log.journal,
        recorders=recorders,
        failure=None if failure is None else scrubbed(failure, job.workload.storage.storage_options),
    )


_MAX_PLANNED, _MAX_BLOCKS = 10**9, 10**6
"""Most steps (of all ranks) or samples, and most checkpoints, that a plan may have: each takes memory to analyse."""


def read_run(folder: str) -> Run:
    """Read a run's folder, or what a killed run left in live/, and compute all from the steps; raises UserError."""
    path = os.path.join(folder, FACTS)
    if not os.path.lexists(path) and os.path.isfile(os.path.join(folder, LIVE, FACTS)):
        return _checked(_read_live(folder), os.path.join(folder, LIVE))
    facts, rows = read_facts(path, Facts), read_steps(folder)
    if facts.failure is None and not len(rows):
        raise UserError(
            f"{folder} holds a complete run without {STEPS}, so its numbers can't be recomputed: copy it again"
        )
    return _checked(Run(folder, facts, rows, read_readings(folder, facts)), os.path.join(folder, STEPS))


def salvage(live_folder: str) -> RunLog | None:
    """Return the log of a failed run from the files in its live folder; None when nothing was measured yet."""
    journal = read_journal(live_folder, Journal)
    if journal is None:
        return None
    names = sorted(name for name in os.listdir(live_folder) if name.startswith("rank_"))
    rows = [np.empty(0, STEP_DTYPE), *(read_log(os.path.join(live_folder, name)) for name in names)]
    return RunLog(np.concatenate(rows), journal.noting(requests=requests_so_far(live_folder)), read_logs(live_folder))


def _read_live(folder: str) -> Run:
    facts, log = read_live(folder, Facts, salvage, "step")
    early = log.journal.stopped_early
    if early is not None:
        train = replace(facts.workload.train, total_training_steps=early.steps)
        facts = replace(facts, workload=replace(facts.workload, train=train))
    return Run(folder, facts, log.rows, log.telemetry)


def _checked(run: Run, path: str) -> Run:
    """Return the run; raises UserError for impossible facts or rows, which could cost any amount of memory and time."""
    facts = run.facts
    try:
        check(facts.workload)
    except UserError as error:
        raise UserError(f"{run.folder} is damaged: {error}") from error
    plan = facts.stream_plan or facts.plan
    if facts.ranks < 1 or plan is None or plan.ranks != facts.ranks:
        raise UserError(f"{run.folder} is damaged: its plan does not fit the {facts.ranks} ranks of its facts.json")
    if min(plan.num_files, plan.num_samples_per_file, plan.batch_size) < 1:
        raise UserError(f"{run.folder} is damaged: its plan has no samples")
    steps = facts.workload.train.epochs * max(1, plan.steps_per_epoch)
    if facts.ranks * steps > _MAX_PLANNED or plan.num_samples > _MAX_PLANNED:
        raise UserError(f"{run.folder} is damaged: its facts.json plans more steps or samples than any run could have")
    every = facts.workload.checkpoint.steps_between_checkpoints
    blocks = steps // every if facts.workload.workflow.checkpoint and every > 0 else 0
    if blocks > _MAX_BLOCKS:
        raise UserError(f"{run.folder} is damaged: its facts.json plans {blocks} checkpoints")
    check_hosts(run, rows=len(run.rows))
    check_steps(path, run.rows, facts.ranks, facts.workload.train.epochs)
    return computed(run)
