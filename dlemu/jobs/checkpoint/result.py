"""A checkpoint run, from its job or its folder: its measurements, and the summary computed from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from datagen.errors import UserError
from datagen.withheld import public_text, scrubbed
from dlemu.checkpoints.io_rows import IO_DTYPE
from dlemu.config.dump import published
from dlemu.jobs.checkpoint.analyse import analyse_checkpoints
from dlemu.jobs.checkpoint.loop import CheckpointLog, salvage_checkpoints
from dlemu.jobs.checkpoint.measured import (
    ROWS,
    CheckpointJournal,
    CheckpointRunFacts,
    MeasuredCheckpoints,
)
from dlemu.jobs.checkpoint.plan import CheckpointJob
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.results.file_names import FACTS, LIVE
from dlemu.results.measured import check_hosts, computed, read_facts, read_live, read_readings, sent_state
from dlemu.results.tables import read_rows
from dlemu.telemetry import RecorderHead


@dataclass(frozen=True, eq=False)
class CheckpointRun(MeasuredCheckpoints):
    """Measurements and summary of one checkpoint run."""

    __getstate__ = sent_state

    @cached_property
    def summary(self) -> CheckpointSummary:
        """Every published number, computed from the measurements."""
        return analyse_checkpoints(self)


def make_checkpoint_run(job: CheckpointJob, log: CheckpointLog, failure: str | None = None) -> CheckpointRun:
    """Return the result of a job; `failure` is why it is incomplete, None if it is not."""
    heads = tuple(host.head for host in log.telemetry)
    facts = make_checkpoint_facts(job, log.journal, failure, recorders=heads)
    return CheckpointRun(job.folder, facts, log.rows, log.telemetry)


def make_checkpoint_facts(
    job: CheckpointJob, journal: CheckpointJournal, failure: str | None, *, recorders: tuple[RecorderHead, ...] = ()
) -> CheckpointRunFacts:
    """Return the facts of a job's run."""
    return CheckpointRunFacts(
        workload=published(job.workload),
        ranks=job.ranks,
        seed=job.seed,
        started_at=job.started_at,
        sources=tuple(source.checkpoint for source in job.sources),
        notes=tuple(map(public_text, job.notes)),
        journal=journal,
        recorders=recorders,
        written=job.plan.sizes,
        failure=None if failure is None else scrubbed(failure, job.workload.storage.storage_options),
    )


_MAX_PARTS = 10**6
"""Limit on a run's ranks, and on a model's experts over all layers: more can only be a damaged file, and cost time."""


def read_checkpoint_run(folder: str) -> CheckpointRun:
    """Read the folder of a checkpoint run, or what a killed one left in live/; raises UserError if it has no result."""
    path = os.path.join(folder, FACTS)
    if not os.path.lexists(path) and os.path.isfile(os.path.join(folder, LIVE, FACTS)):
        facts, log = read_live(folder, CheckpointRunFacts, salvage_checkpoints, "file")
        return _checked(CheckpointRun(folder, facts, log.rows, log.telemetry))
    facts = read_facts(path, CheckpointRunFacts)
    return _checked(CheckpointRun(folder, facts, read_rows(folder, ROWS, IO_DTYPE), read_readings(folder, facts)))


def _checked(run: CheckpointRun) -> CheckpointRun:
    """Return the run; raises UserError for impossible facts or rows, on which any memory and time could be spent."""
    facts, model = run.facts, run.facts.workload.model
    if facts.ranks > _MAX_PARTS or model.num_layers * max(1, model.transformer.num_experts) > _MAX_PARTS:
        raise UserError(f"{run.folder} is damaged: its facts have more ranks, or layers and experts, than any model")
    if len(run.rows) and not 0 <= int(run.rows["rank"].min()) <= int(run.rows["rank"].max()) < facts.ranks:
        raise UserError(f"{run.folder} is damaged: it has rows of ranks that the run does not have")
    check_hosts(run, rows=len(run.rows))
    return computed(run)
