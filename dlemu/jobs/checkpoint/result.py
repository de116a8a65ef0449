"""A checkpoint run, from its job or its folder: its measurements, and the summary computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from datagen.errors import UserError
from datagen.withheld import public_text
from dlemu.checkpoints.io_rows import IO_DTYPE, IoRows, read_logs
from dlemu.jobs.checkpoint.analyse import analyse_checkpoints
from dlemu.jobs.checkpoint.live import LiveCheckpoints
from dlemu.jobs.checkpoint.measured import ROWS, CheckpointJournal, CheckpointRunFacts, MeasuredCheckpoints
from dlemu.jobs.checkpoint.plan import CheckpointJob
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.results.tables import read_rows
from dlemu.runner.job_kind import JobKind

_MAX_PARTS = 10**6
"""Limit on a run's ranks, and on a model's experts over all layers: more can only be a damaged file, and cost time."""


@dataclass(frozen=True, eq=False)
class CheckpointRun(MeasuredCheckpoints):
    """Measurements and summary of one checkpoint run."""

    @cached_property
    def summary(self) -> CheckpointSummary:
        """Every published number, computed from the measurements."""
        return analyse_checkpoints(self)


class CheckpointRuns(JobKind[CheckpointJob, CheckpointRunFacts, CheckpointJournal, CheckpointRun]):
    """How runs of checkpoints are made and read."""

    name = "checkpoint"
    facts_type, journal_type, run_type = CheckpointRunFacts, CheckpointJournal, CheckpointRun
    follow, row_noun = LiveCheckpoints, "file"

    def live_rows(self, live_folder: str) -> IoRows:
        return read_logs(live_folder)

    def saved_rows(self, folder: str) -> IoRows:
        return read_rows(folder, ROWS, IO_DTYPE)

    def own_facts(self, job: CheckpointJob) -> dict[str, Any]:
        return {
            "sources": tuple(source.checkpoint for source in job.sources),
            "notes": tuple(map(public_text, job.notes)),
            "written": job.plan.sizes,
        }

    def check(self, run: CheckpointRun) -> None:
        facts, model = run.facts, run.facts.workload.model
        if facts.ranks > _MAX_PARTS or model.num_layers * max(1, model.transformer.num_experts) > _MAX_PARTS:
            raise UserError(
                f"{run.folder} is damaged: its facts have more ranks, or layers and experts, than any model"
            )
        if len(run.rows) and not 0 <= int(run.rows["rank"].min()) <= int(run.rows["rank"].max()) < facts.ranks:
            raise UserError(f"{run.folder} is damaged: it has rows of ranks that the run does not have")


read_checkpoint_run = CheckpointRuns().read
