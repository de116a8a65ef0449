"""A checkpoint run, read while it is under way or from its folder: its measurements, and the summary of these."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from datagen.errors import UserError
from datagen.withheld import public_text
from dlemu.checkpoints.io_rows import IO_COLUMNS, WHOLE, WRITE, IoRows, read_logs
from dlemu.jobs.checkpoint.analyse import analyse_checkpoints
from dlemu.jobs.checkpoint.measured import ROWS, CheckpointJournal, CheckpointRunFacts, MeasuredCheckpoints
from dlemu.jobs.checkpoint.plan import CheckpointJob
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.results.live import Progress, seconds_left
from dlemu.runner.job_kind import JobKind
from dlemu.telemetry import Telemetry

# Limit on a run's ranks, and on a model's experts over all layers: only a damaged file has more, and takes long
_MAX_PARTS = 10**6


@dataclass(frozen=True, eq=False)
class CheckpointRun(MeasuredCheckpoints):
    """Measurements and summary of one checkpoint run."""

    @cached_property
    def summary(self) -> CheckpointSummary:
        """Every published number, computed from the measurements."""
        return analyse_checkpoints(self)


class LiveCheckpoints:
    """Follows a checkpoint run, whose ranks log a row after each file that they write or read."""

    def __init__(self, facts: CheckpointRunFacts, live_folder: str) -> None:
        self._folder, self._ranks = live_folder, facts.ranks
        self._writes = max(0, facts.workload.checkpoint.num_checkpoints_write)
        self._reads = len(facts.sources)

    def __call__(self) -> Progress | None:
        """Return the progress; None before the first file."""
        rows = read_logs(self._folder)
        if not len(rows):
            return None
        checkpoints, total = rows[rows["file"] == WHOLE], self._writes + self._reads
        done = int(np.bincount(checkpoints["rank"], minlength=self._ranks).min())
        last = rows[np.argmax(rows["ended_ns"])]
        verb, count = ("written", self._writes) if last["phase"] == WRITE else ("read", self._reads)
        of_phase = rows[rows["phase"] == last["phase"]]
        files = of_phase[(of_phase["checkpoint"] == last["checkpoint"]) & (of_phase["file"] != WHOLE)]
        mb_per_second = None
        if len(files):
            seconds = max(1, int(files["ended_ns"].max() - files["started_ns"].min())) / 1e9
            mb_per_second = float(files["bytes"].sum() / 1e6 / seconds)
        return Progress(
            at=f"checkpoint {last['checkpoint']}/{count} {verb}",
            done=done,
            total=total,
            mb_per_second=mb_per_second,
            seconds_left=seconds_left((rows["ended_ns"].max() - rows["began_ns"].min()) / 1e9, done, total),
        )


class CheckpointRuns(JobKind):
    """How runs of checkpoints are made and read."""

    name = "checkpoint"
    facts_type, journal_type, columns, table = CheckpointRunFacts, CheckpointJournal, IO_COLUMNS, ROWS
    follow, row_noun = LiveCheckpoints, "file"

    def live_rows(self, live_folder: str) -> IoRows:
        return read_logs(live_folder)

    def run_of(self, folder: str, facts: CheckpointRunFacts, rows: IoRows, telemetry: Telemetry) -> CheckpointRun:
        return CheckpointRun(folder, facts, rows, telemetry)

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
