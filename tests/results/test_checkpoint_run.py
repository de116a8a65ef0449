"""A run of checkpoints whose folder was damaged on the way; what all kinds share is in test_folder.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datagen.errors import UserError
from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.measured import ROWS as CHECKPOINT_ROWS
from dlemu.jobs.checkpoint.run import read_checkpoint_run
from dlemu.results import FACTS
from dlemu.results.measured import write_measured
from tests.results.handmade import CHECKPOINT_RUNS
from tests.results.test_folder import merged


@pytest.fixture
def run(tmp_path: Path) -> CheckpointRun:
    made = CHECKPOINT_RUNS["checkpoints_watched"]()
    run = CheckpointRun(str(tmp_path), made.facts, made.rows, made.telemetry)
    write_measured(run)
    return run


LARGE = {"workload": {"model": {"num_layers": 10**4, "transformer": {"num_experts": 10**5}}}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"ranks": 3}, "rows of ranks that the run does not have"), (LARGE, "layers and experts, than a model")],
)
def test_facts_that_no_run_could_have_are_named(run: CheckpointRun, changes: dict[str, Any], said: str) -> None:
    path = Path(run.folder, FACTS)
    path.write_text(json.dumps(merged(json.loads(path.read_text()), changes)))
    with pytest.raises(UserError, match=f"^{run.folder} is damaged: .*{said}"):
        read_checkpoint_run(run.folder)


def test_every_column_is_written_with_its_meaning_and_wanted_again(run: CheckpointRun) -> None:
    path = Path(run.folder, CHECKPOINT_ROWS)
    whole = pq.read_table(path)
    assert {field.name: field.metadata[b"meaning"].decode() for field in whole.schema} == IO_COLUMNS
    assert {(field.type, field.nullable) for field in whole.schema} == {(pa.int64(), False)}
    assert read_checkpoint_run(run.folder).rows.tolist() == run.rows.tolist()
    at = whole.column_names.index("call_ns")
    holed = pa.array([None, *[1] * (len(run.rows) - 1)], pa.int64())
    for table in (whole.drop_columns(["call_ns"]), whole.set_column(at, "call_ns", holed)):
        pq.write_table(table, path)
        with pytest.raises(UserError, match="is damaged: wanted a column call_ns of whole numbers"):
            read_checkpoint_run(run.folder)
    path.unlink()
    with pytest.raises(UserError, match="is missing: the run's metrics can't be computed"):
        read_checkpoint_run(run.folder)
