"""A training run, from its job or its folder: its measurements, and the summary computed from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from datagen.engines import READER_VERSION
from datagen.errors import UserError
from datagen.withheld import public_text
from dlemu.config.validate import check as check_settings
from dlemu.jobs.training.analyse import analyse
from dlemu.jobs.training.live import LiveTraining
from dlemu.jobs.training.measured import Facts, Journal, MeasuredTraining, Series
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.steplog import STEP_DTYPE, STEPS, StepRows, check_steps, read_log, read_steps
from dlemu.jobs.training.summary import Summary
from dlemu.metrics.rows import Rows
from dlemu.plan.streams import StreamPlan
from dlemu.results.host_activity import devices_of
from dlemu.results.measured import MeasuredLog
from dlemu.runner.job_kind import JobKind
from dlemu.telemetry import Telemetry

_MAX_PLANNED, _MAX_BLOCKS = 10**9, 10**6
"""Most steps (of all ranks) or samples, and most checkpoints, that a plan may have: each takes memory to analyse."""


@dataclass(frozen=True, eq=False)
class Run(MeasuredTraining):
    @cached_property
    def summary(self) -> Summary:
        """Every published number, computed from the measurements."""
        return analyse(self)

    def device_series(self, probe: str, *metrics: str) -> list[Series]:
        """Return `series` of the counted devices only: the file system's own, not those below, with the same bytes."""
        devices = list(devices_of(self.telemetry))
        counted = {(host.host, device.name) for host, device in devices if device.counted}
        return [each for each in self.series(probe, *metrics) if not devices or (each.host, each.source) in counted]


RunLog = MeasuredLog[Journal]


class TrainingRuns(JobKind):
    name = "training"
    facts_type, journal_type, row_noun = Facts, Journal, "step"
    follow = LiveTraining

    def live_rows(self, live_folder: str) -> StepRows:
        names = sorted(name for name in os.listdir(live_folder) if name.startswith("rank_"))
        logs = [read_log(os.path.join(live_folder, name)) for name in names]
        return np.concatenate([np.empty(0, STEP_DTYPE), *logs])

    def saved_rows(self, folder: str) -> Rows:
        return read_steps(folder)

    def run_of(self, folder: str, facts: Facts, rows: Rows, telemetry: Telemetry) -> Run:
        """Return the run; one that was stopped early gets `train.total_training_steps` of what it took."""
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
            "num_files_eval": job.found.valid.num_files if job.found.valid else 0,
            "total_bytes": job.found.total_bytes,
            "notes": (*map(public_text, job.found.notes), *job.loader_notes),
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
    """Raise UserError for facts of which any amount of memory or time could be spent."""
    check_settings(facts.workload)
    plan, every = facts.stream_plan or facts.plan, facts.workload.checkpoint.steps_between_checkpoints
    if facts.ranks < 1 or plan is None or plan.ranks != facts.ranks:
        raise UserError(f"its plan does not fit the {facts.ranks} ranks of its facts.json")
    if min(plan.num_files, plan.num_samples_per_file, plan.batch_size) < 1:
        raise UserError("its plan has no samples")
    steps = facts.workload.train.epochs * max(1, plan.steps_per_epoch)
    if facts.ranks * steps > _MAX_PLANNED or plan.num_samples > _MAX_PLANNED:
        raise UserError("its facts.json plans more steps or samples than any run could have")
    if facts.workload.workflow.checkpoint and every > 0 and steps // every > _MAX_BLOCKS:
        raise UserError(f"its facts.json plans {steps // every} checkpoints")


make_run: Callable[..., Run] = TrainingRuns().result
read_run: Callable[[str], Run] = TrainingRuns().read
