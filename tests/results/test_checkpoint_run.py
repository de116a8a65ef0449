"""A run of checkpoints from what its ranks left, and from a folder that was damaged on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datagen.errors import UserError
from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.jobs.checkpoint.measured import ROWS as CHECKPOINT_ROWS
from dlemu.jobs.checkpoint.result import CheckpointRun, read_checkpoint_run
from dlemu.results.file_names import FACTS
from dlemu.results.measured import write_measured, write_summary
from tests.results.handmade import CHECKPOINT_RUNS

WATCHED = CHECKPOINT_RUNS["checkpoints_watched"]


def saved(folder: Path) -> CheckpointRun:
    made = WATCHED()
    run = CheckpointRun(str(folder), made.facts, made.rows, made.telemetry)
    write_measured(run)
    write_summary(run)
    return run


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"facts_version": 99}, "has facts_version 99, wanted 1: another version of dlemu wrote it"),
        ({"ranks": 3}, "rows of ranks that the run does not have"),
        ({"journal": {"hosts": []}}, "does not say on which host"),
    ],
)
def test_facts_that_do_not_fit_the_rows_are_told(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    saved(tmp_path)
    path = tmp_path / FACTS
    values = json.loads(path.read_text())
    if "journal" in changes:
        changes = {"journal": values["journal"] | changes["journal"]}
    path.write_text(json.dumps(values | changes))
    with pytest.raises(UserError, match=said) as caught:
        read_checkpoint_run(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_model_that_can_not_be_is_told_at_once(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / FACTS
    values = json.loads(path.read_text())
    values["workload"]["model"]["num_layers"] = 10**4
    values["workload"]["model"]["transformer"]["num_experts"] = 10**5
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=rf"^{tmp_path} is damaged: .*more ranks, or layers and experts, than any"):
        read_checkpoint_run(str(tmp_path))


def test_tables_of_other_rows_are_told(tmp_path: Path) -> None:
    run = saved(tmp_path)
    table = tmp_path / CHECKPOINT_ROWS
    kept = table.read_bytes()
    table.unlink()
    with pytest.raises(UserError, match="is missing: the run's metrics can't be computed"):
        read_checkpoint_run(str(tmp_path))
    table.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(UserError, match="parquet"):
        read_checkpoint_run(str(tmp_path))
    table.write_bytes(kept)
    assert read_checkpoint_run(str(tmp_path)).rows.tolist() == run.rows.tolist()
    assert set(run.rows.dtype.names or ()) == set(IO_COLUMNS)


def test_columns_are_missed(tmp_path: Path) -> None:
    run = saved(tmp_path)
    path = tmp_path / CHECKPOINT_ROWS
    whole = pq.read_table(path)
    pq.write_table(whole.drop_columns(["call_ns"]), path)
    with pytest.raises(UserError, match="is damaged: wanted a column call_ns of whole numbers"):
        read_checkpoint_run(str(tmp_path))
    at = whole.column_names.index("call_ns")
    for column in (pa.array(["1"] * len(run.rows)), pa.array([None, *[1] * (len(run.rows) - 1)], pa.int64())):
        pq.write_table(whole.set_column(at, "call_ns", column), path)
        with pytest.raises(UserError, match="is damaged: wanted a column call_ns of whole numbers"):
            read_checkpoint_run(str(tmp_path))


def test_every_column_is_written_with_what_it_means(tmp_path: Path) -> None:
    saved(tmp_path)
    schema = pq.read_schema(tmp_path / CHECKPOINT_ROWS)
    assert {field.name: field.metadata[b"meaning"].decode() for field in schema} == IO_COLUMNS
    assert {(field.type, field.nullable) for field in schema} == {(pa.int64(), False)}
