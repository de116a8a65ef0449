"""Reads the result folder of a checkpoint run, complete or killed."""

from __future__ import annotations

import os

from datagen.errors import UserError
from dlemu.checkpoints.io_rows import IO_DTYPE, PROGRESS_DTYPE
from dlemu.jobs.checkpoint.kind import PROGRESS, ROWS
from dlemu.jobs.checkpoint.loop import salvage_checkpoints
from dlemu.jobs.checkpoint.measured import CheckpointRunFacts
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.results.file_names import FACTS, LIVE
from dlemu.results.measured import check_hosts, computed, read_facts, read_live, read_readings, read_saved
from dlemu.results.row_tables import read_rows

_MAX_PARTS = 10**6
"""Limit on a run's ranks, and on a model's experts over all layers: more can only be a damaged file, and cost time."""


def read_checkpoint_run(folder: str) -> CheckpointRun:
    """Read the folder of a checkpoint run; raises UserError if it has no result, or a damaged one.

    Every number is recomputed from the rows. A run that was killed before it saved a result is read from the files of
    its ranks in live/.
    """
    path = os.path.join(folder, FACTS)
    if not os.path.lexists(path) and os.path.isfile(os.path.join(folder, LIVE, FACTS)):
        facts, log = read_live(folder, CheckpointRunFacts, salvage_checkpoints, "file")
        return _checked(CheckpointRun(folder, facts, log.rows, log.progress, log.telemetry))
    facts = read_facts(path, CheckpointRunFacts)
    rows, progress = read_rows(folder, ROWS, IO_DTYPE), read_rows(folder, PROGRESS, PROGRESS_DTYPE)
    return _checked(CheckpointRun(folder, facts, rows, progress, read_readings(folder, facts)))


def read_checkpoint_summary(folder: str) -> CheckpointSummary:
    """Read summary.json as it was saved, to compare it with the recomputed one; raises UserError."""
    return read_saved(folder, CheckpointSummary, CheckpointSummary.kind)


def _checked(run: CheckpointRun) -> CheckpointRun:
    """Return the run; raises UserError for impossible facts or rows, on which any memory and time could be spent."""
    facts, model = run.facts, run.facts.workload.model
    if facts.ranks > _MAX_PARTS or model.num_layers * max(1, model.transformer.num_experts) > _MAX_PARTS:
        raise UserError(f"{run.folder} is damaged: its facts have more ranks, or layers and experts, than any model")
    for part in (run.rows, run.progress):
        if len(part) and not 0 <= int(part["rank"].min()) <= int(part["rank"].max()) < facts.ranks:
            raise UserError(f"{run.folder} is damaged: it has rows of ranks that the run does not have")
    check_hosts(run, rows=len(run.rows))
    return computed(run)
