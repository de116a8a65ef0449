"""Training as a kind of job: checks, plans and runs it on its ranks, and reads its result, `Run`, from a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from datagen import manifest
from datagen.engines import READER_VERSION
from datagen.errors import UserError
from datagen.inspection import inspect, no_dataset
from datagen.registry import import_by_name
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import StorageSpec, open_storage
from datagen.withheld import redact_urls
from dlemu.config import check_data, check_runnable, datagen_command
from dlemu.config.schema import Workload
from dlemu.config.validate import check as check_settings
from dlemu.jobs.training import preflight
from dlemu.jobs.training.analyse import analyse
from dlemu.jobs.training.measured import Facts, Journal, LiveTraining, MeasuredTraining, Series
from dlemu.jobs.training.plan import TrainingJob, make_job
from dlemu.jobs.training.steplog import STEP_DTYPE, STEPS, StepRows, check_steps, log_name, read_log, read_steps
from dlemu.jobs.training.summary import Summary
from dlemu.jobs.training.trainer import run_rank
from dlemu.loaders.traits_base import check_installed
from dlemu.metrics.rows import Rows
from dlemu.plan.streams import StreamPlan
from dlemu.ranks import Comm
from dlemu.results.host_activity import devices_of
from dlemu.results.measured import MeasuredLog
from dlemu.results.wording import count
from dlemu.runner.events import Doing, JobBegan, OnEvent
from dlemu.runner.job_kind import DataCheck, JobKind, Notify
from dlemu.runner.ranks import Ranks
from dlemu.runner.recording import RankRecord
from dlemu.telemetry import Telemetry

# Maxima in a plan: steps of all ranks or samples of a batch, and checkpoints, take memory to analyse; samples take time
_MAX_PLANNED, _MAX_CHECKPOINTS, _MAX_SAMPLES = 10**9, 10**6, 10**11


@dataclass(frozen=True, eq=False)
class Run(MeasuredTraining):
    """A training run: its measurements, and the summary computed from them."""

    @cached_property
    def summary(self) -> Summary:
        """Every published number, computed from the measurements."""
        return analyse(self)

    def device_series(self, probe: str, *metrics: str) -> list[Series]:
        """Return `series` of the devices that count (`HostDevice.counted`): those below them deliver the same bytes."""
        devices = list(devices_of(self.telemetry))
        counted = {(host.host, device.name) for host, device in devices if device.counted}
        all_series = self.series(probe, *metrics)
        return [series for series in all_series if not devices or (series.host, series.source) in counted]


RunLog = MeasuredLog[Journal]


class Training(JobKind):
    """A job in which each rank streams batches through a real loader to an emulated accelerator."""

    name = "training"
    facts_type, journal_type, row_noun = Facts, Journal, "step"
    follow = LiveTraining

    def complete(self, workload: Workload) -> Workload:
        if workload.workflow.train:
            check_runnable(workload)
            check_installed(workload.reader.data_loader)
            return workload
        # Without training, DLIO (2.x, main.py) only generates data or saves checkpoints: an evaluation always trains.
        flow = workload.workflow
        if flow.evaluation or not flow.generate_data:
            included = "evaluation, which is part of training, as in DLIO" if flow.evaluation else "nothing else"
            raise UserError(
                f"workflow.train is false, and the workload includes {included}; set workflow.train=True, or only "
                "workflow.generate_data=True to generate the dataset"
            )
        check_data(workload)
        return workload

    def with_making(self, workload: Workload, ranks: int, *, size_is_given: bool) -> tuple[Workload, int]:
        """Return the workload with the dataset to make, and the nominal maximum of bytes to make."""
        return preflight.workload_for_making(workload, ranks, size_is_given=size_is_given)

    def looks_at(self, workload: Workload) -> str:
        return f"the dataset in {workload.dataset.data_folder}"

    def before(self, workload: Workload, ranks: Ranks, on_event: OnEvent, *, wants_verdict: bool) -> bool:
        """Make the dataset if requested; return whether the workload also trains."""
        if not workload.workflow.generate_data:
            return True
        trains = workload.workflow.train
        if trains:
            check = partial(preflight.check_before_making, workload, ranks.count, wants_verdict=wants_verdict)
            ranks.compute_once(partial(self.in_time, workload, check))
        from dlemu.runner.datasets import make_share  # most runs make none

        if ranks.leads:
            on_event(JobBegan(workload, ranks.count))
        ranks.run(lambda comm: make_share(workload, comm, on_event))
        return trains

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> TrainingJob:
        """Inspect the dataset and return the job; with `wants_verdict`, refuse a dataset too small for a verdict."""
        preflight.check_model(workload, ranks)
        data, storage = workload.dataset, open_storage(workload.storage_spec.buffered)
        advises_making = wants_verdict and data.source != "folder"
        if advises_making and manifest.read(data.data_folder, storage) is None:  # raises if the folder is a file
            problem = no_dataset(data.data_folder, storage)
            if problem:
                raise preflight.no_verdict_error(problem, workload, ranks, 0)
        dataset = inspect(data, command_hint=lambda: datagen_command(workload), storage=workload.storage_spec)
        if wants_verdict:
            existing_files = dataset.spec.num_files_train
            preflight.check_verdict_possible(workload, ranks, dataset.train.num_files, existing_files=existing_files)
        return make_job(workload, ranks, dataset)

    def look_at_points(self) -> DataCheck:
        """Return a function that inspects each dataset once, however many runs of the sweep read it."""
        inspected: list[tuple[DatasetSpec, StorageSpec]] = []

        def look(workload: Workload) -> None:
            data, storage = workload.dataset, workload.storage_spec
            if (data, storage) not in inspected:
                inspect(data, command_hint=partial(datagen_command, workload), storage=storage)
                inspected.append((data, storage))

        return look

    def live_names(self, rank: int) -> Iterable[str]:
        return (log_name(rank),)

    def begin(self, job: TrainingJob) -> None:
        """Reserve the names of the run's checkpoints, which may overwrite only dlemu's own; raises UserError."""
        if not job.saves:
            return
        from dlemu.checkpoints.stored import block_name, claim_blocks

        folder, storage = job.workload.checkpoint.checkpoint_folder, open_storage(job.workload.storage_spec.buffered)
        blocks = ((epoch.number, block) for epoch in job.schedule for block in epoch.blocks)
        names = {block_name(epoch, block.number) for epoch, block in blocks if block.checkpoint}
        try:
            claim_blocks(storage, folder, names)
        except OSError as error:
            raise UserError(
                f"checkpoint.checkpoint_folder {folder} can't be written: {error.strerror or error}; set it to a "
                "writable folder"
            ) from error

    def check_host(self, job: TrainingJob, local_ranks: int) -> None:
        preflight.check_host(job, local_ranks)
        if job.workload.checkpoint.type == "all_ranks" or job.workload.model.has_layers:
            self.begin(job)  # on each host once more, as all hosts write, perhaps to folders of their own

    def load(self, job: TrainingJob) -> None:
        """Import the loader's framework, and the code that saves checkpoints if the run saves any."""
        job.loader_class()
        if job.saves:
            import_by_name("dlemu.checkpoints.save")

    def run_rank(self, job: TrainingJob, comm: Comm, notify: Notify | None) -> RunLog | None:
        record = RankRecord(job, comm, self.new_journal(), job.workload.dataset.data_folder)
        if notify is None:
            return run_rank(job, comm, record)
        reporter = self.reporter(job, notify)

        def on_activity(activity: str) -> None:
            reporter.report()  # reports the progress so far before the activity
            notify(Doing(activity))

        log = run_rank(job, comm, record, reporter, on_activity)
        if log is not None:
            on_activity(f"computing the result of {count(len(log.rows), 'step')}")
        return log

    def live_rows(self, live_folder: str) -> StepRows:
        names = sorted(name for name in os.listdir(live_folder) if name.startswith("rank_"))
        logs = [read_log(os.path.join(live_folder, name)) for name in names]
        return np.concatenate([np.empty(0, STEP_DTYPE), *logs])

    def saved_rows(self, folder: str) -> Rows:
        return read_steps(folder)

    def run_of(self, folder: str, facts: Facts, rows: Rows, telemetry: Telemetry) -> Run:
        """Return the run; if it was stopped early, `train.total_training_steps` is the number of completed steps."""
        steps = facts.journal.stopped_after_steps
        if steps is not None:
            train = replace(facts.workload.train, total_training_steps=steps)
            facts = replace(facts, workload=replace(facts.workload, train=train))
        return Run(folder, facts, rows, telemetry)

    def own_facts(self, job: TrainingJob) -> dict[str, Any]:
        plan = job.train_plan
        return {
            "plan": None if isinstance(plan, StreamPlan) else plan,
            "stream_plan": plan if isinstance(plan, StreamPlan) else None,
            "num_files_eval": job.dataset.valid.num_files if job.dataset.valid else 0,
            "total_bytes": job.dataset.total_bytes,
            "notes": (*map(redact_urls, job.dataset.notes), *job.loader_notes),
            "batches_ahead": job.batches_ahead,
            "reader_version": READER_VERSION,
        }

    def check(self, run: Run) -> None:
        facts = run.facts
        if facts.failure is None and not len(run.rows):
            raise UserError(
                f"{run.folder} holds a complete run without {STEPS}, so its numbers can't be recomputed: copy it again"
            )
        try:
            _check_facts(facts)
        except UserError as error:
            raise UserError(f"{run.folder} is damaged: {error}") from error
        path = os.path.join(run.folder, STEPS)
        check_steps(path if os.path.exists(path) else run.folder, run.rows, facts.ranks, facts.workload.train.epochs)


def _check_facts(facts: Facts) -> None:
    """Raise UserError for inconsistent facts, and for plans too large to analyse in reasonable memory and time."""
    check_settings(facts.workload)
    plan, every = facts.stream_plan or facts.plan, facts.workload.checkpoint.steps_between_checkpoints
    if facts.ranks < 1 or plan is None or plan.ranks != facts.ranks:
        raise UserError(f"its plan does not fit the {facts.ranks} ranks of its facts.json")
    if min(plan.num_files, plan.num_samples_per_file, plan.batch_size) < 1:
        raise UserError("its plan has no samples")
    steps = facts.workload.train.epochs * max(1, plan.steps_per_epoch)
    if max(facts.ranks * steps, plan.batch_size) > _MAX_PLANNED or plan.num_samples > _MAX_SAMPLES:
        raise UserError("its facts.json plans more steps or samples than any run could have")
    if facts.workload.workflow.checkpoint and every > 0 and steps // every > _MAX_CHECKPOINTS:
        raise UserError(f"its facts.json plans {steps // every} checkpoints")


TRAINING = Training()
read_run: Callable[[str], Run] = TRAINING.read
