"""A run of checkpoints from what its ranks left, and from a folder that was damaged on the way."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

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
    ("key", "value", "said"),
    [
        ("facts_version", 99, "has facts_version 99, wanted 1: another version of dlemu wrote it"),
        ("ranks", 3, "rows of ranks that the run does not have"),
        ("journal.hosts", [], "does not say on which host"),
        ("ranks", 10**7, "is damaged: .*more ranks, or layers and experts, than any"),
    ],
)
def test_facts_that_do_not_fit_the_rows_are_told(tmp_path: Path, key: str, value: object, said: str) -> None:
    saved(tmp_path)
    path = tmp_path / FACTS
    facts = json.loads(path.read_text())
    *above, name = key.split(".")
    part = reduce(lambda outer, inner: outer[inner], above, facts)
    part[name] = value
    path.write_text(json.dumps(facts))
    with pytest.raises(UserError, match=rf"{tmp_path}.*{said}"):
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


def test_every_column_is_written_with_what_it_means_and_missed(tmp_path: Path) -> None:
    run = saved(tmp_path)
    path = tmp_path / CHECKPOINT_ROWS
    whole = pq.read_table(path)
    assert {field.name: field.metadata[b"meaning"].decode() for field in whole.schema} == IO_COLUMNS
    assert {(field.type, field.nullable) for field in whole.schema} == {(pa.int64(), False)}
    at, others = whole.column_names.index("call_ns"), [1] * (len(run.rows) - 1)
    damaged = [
        whole.set_column(at, "call_ns", column)
        for column in (pa.array(["1", *map(str, others)]), pa.array([None, *others], pa.int64()))
    ]
    for table in (whole.drop_columns(["call_ns"]), *damaged):
        pq.write_table(table, path)
        with pytest.raises(UserError, match="is damaged: wanted a column call_ns of whole numbers"):
            read_checkpoint_run(str(tmp_path))
