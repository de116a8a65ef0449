"""A run of checkpoints from what its ranks left, and from a folder that was damaged on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.emulator.checkpoint_job import CheckpointJob, ReadSource
from dlemu.emulator.checkpoint_loop import CheckpointLog
from dlemu.results.checkpoint_folder import (
    read_checkpoint_run,
    read_checkpoint_summary,
    write_checkpoint_run,
    write_checkpoint_summary,
)
from dlemu.results.checkpoint_run import CheckpointRun, make_checkpoint_run
from dlemu.results.folder import CHECKPOINT_ROWS, FACTS, read_config
from tests.results.handmade import CHECKPOINT_RUNS

WATCHED = CHECKPOINT_RUNS["checkpoints_watched"]


def saved(folder: Path) -> CheckpointRun:
    made = WATCHED()
    run = CheckpointRun(str(folder), made.facts, made.rows, made.progress, made.telemetry)
    write_checkpoint_run(run)
    write_checkpoint_summary(run)
    return run


@pytest.mark.parametrize("failure", [None, "the disk is full"])
def test_a_job_becomes_its_run(failure: str | None) -> None:
    made = WATCHED()
    facts = made.facts
    read = [
        ReadSource(checkpoint=number, plan=facts.plan, settings=facts.workload.checkpoint, seed=5, known=True)
        for number in (3, 2)
    ]
    job = CheckpointJob(
        workload=facts.workload,
        ranks=facts.ranks,
        plan=facts.plan,
        seed=facts.seed,
        folder="results/here",
        started_at=facts.started_at,
        token="x",
        sources=tuple(read),
        notes=("a note",),
    )
    run = make_checkpoint_run(job, CheckpointLog(made.rows, made.progress, facts.journal, made.telemetry), failure)
    assert run.folder == "results/here"
    assert run.facts == replace(facts, sources=(3, 2), failure=failure)
    assert run.rows is made.rows
    assert run.progress is made.progress
    assert run.telemetry is made.telemetry


def test_the_summary_and_the_configuration_lie_beside_the_rows(tmp_path: Path) -> None:
    run = saved(tmp_path)
    assert read_checkpoint_summary(str(tmp_path)) == run.summary
    assert "checkpoint_folder: /mnt/drive/saved" in read_config(str(tmp_path))
    assert read_config(str(tmp_path / "nothing")) == ""
    (tmp_path / "summary.json").unlink()
    assert read_checkpoint_run(str(tmp_path)).summary == run.summary


def damaged(values: dict[str, Any], **changes: Any) -> str:
    return json.dumps(values | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"facts_version": 99}, "has facts_version 99, wanted 1: update dlemu"),
        ({"ranks": 3}, "rows of ranks that the run has not"),
        ({"journal": {"rank_nodes": [0, 1, 0]}}, "does not say on which host"),
        ({"journal": {"rank_nodes": [0, 1, 0, 2]}}, "does not say on which host"),
        ({"journal": {"hosts": []}}, "does not say on which host"),
    ],
)
def test_facts_that_do_not_fit_the_rows_are_told(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    saved(tmp_path)
    path = tmp_path / FACTS
    values = json.loads(path.read_text())
    if "journal" in changes:
        changes = {"journal": values["journal"] | changes["journal"]}
    path.write_text(damaged(values, **changes))
    with pytest.raises(UserError, match=said) as caught:
        read_checkpoint_run(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_tables_of_other_rows_are_told(tmp_path: Path) -> None:
    run = saved(tmp_path)
    table = tmp_path / CHECKPOINT_ROWS
    kept = table.read_bytes()
    table.unlink()
    with pytest.raises(UserError, match="is missing: the run's numbers can't be computed"):
        read_checkpoint_run(str(tmp_path))
    table.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(UserError, match="parquet"):
        read_checkpoint_run(str(tmp_path))
    table.write_bytes(kept)
    assert read_checkpoint_run(str(tmp_path)).rows.tolist() == run.rows.tolist()
    assert set(run.rows.dtype.names or ()) == set(IO_COLUMNS)
