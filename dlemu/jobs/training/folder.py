"""Reads the folder of a training run, also of one that was killed."""

from __future__ import annotations

import os
from dataclasses import replace

from datagen.errors import UserError
from dlemu.config.validate import check
from dlemu.jobs.training.measured import Facts
from dlemu.jobs.training.result import Run
from dlemu.jobs.training.step_table import STEPS, check_steps, read_steps
from dlemu.jobs.training.summary import Summary
from dlemu.jobs.training.trainer import salvage
from dlemu.results.file_names import FACTS, LIVE
from dlemu.results.measured import check_hosts, computed, read_facts, read_live, read_readings, read_saved

_MAX_PLANNED, _MAX_BLOCKS = 10**9, 10**6
"""Most steps (of all ranks) or samples, and most checkpoints, that a plan may have: each takes memory to analyse."""


def read_run(folder: str) -> Run:
    """Read a run's folder; raises UserError if it has no result or is damaged.

    Every number is recomputed from the steps; summary.json is not needed (a run may have been killed while writing it).
    A run that was killed before it was saved is read from the files that its ranks left in live/.
    """
    path = os.path.join(folder, FACTS)
    if not os.path.lexists(path) and os.path.isfile(os.path.join(folder, LIVE, FACTS)):
        return _checked(_read_live(folder), os.path.join(folder, LIVE))
    facts, rows = read_facts(path, Facts), read_steps(folder)
    if facts.failure is None and not len(rows):
        raise UserError(
            f"{folder} holds a complete run without {STEPS}, so its numbers can't be recomputed: copy it again"
        )
    return _checked(Run(folder, facts, rows, read_readings(folder, facts)), os.path.join(folder, STEPS))


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


def read_summary(folder: str) -> Summary:
    """Read summary.json as it is, to compare with the recomputed `read_run(folder).summary`; raises UserError."""
    return read_saved(folder, Summary, Summary.kind)
