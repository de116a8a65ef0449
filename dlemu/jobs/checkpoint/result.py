"""The result of a checkpoint run: its measurements with the summary computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from datagen.registry import is_built_in
from datagen.withheld import public_text, scrubbed
from dlemu.checkpoints.checkpoint_plan import FORMATS, CheckpointPlan, CheckpointSizes
from dlemu.config.published import published
from dlemu.jobs.checkpoint.analyse import analyse_checkpoints
from dlemu.jobs.checkpoint.journal import CheckpointJournal
from dlemu.jobs.checkpoint.loop import CheckpointLog
from dlemu.jobs.checkpoint.measured import CheckpointRunFacts, MeasuredCheckpoints, WrittenBy
from dlemu.jobs.checkpoint.plan import CheckpointJob
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.results.measured import sent_state
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
    return CheckpointRun(job.folder, facts, log.rows, log.progress, log.telemetry)


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
        own_sizes=_own_sizes(job),
        written_by=None if _written(job) == job.plan else WrittenBy.of(_written(job)),
        failure=None if failure is None else scrubbed(failure, job.workload.storage.storage_options),
    )


def _written(job: CheckpointJob) -> CheckpointPlan:
    """Return which files of a checkpoint there are: by the writer's plan where others wrote what is read."""
    others = job.settings.reshard and job.sources and not job.writes
    return job.sources[0].plan if others else job.plan


def _own_sizes(job: CheckpointJob) -> CheckpointSizes | None:
    """Return the sizes of a checkpoint if they don't follow from the workload, else None."""
    written = _written(job)
    return None if written == job.plan and is_built_in(FORMATS, job.settings.format) else written.sizes
