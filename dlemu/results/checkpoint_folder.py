"""The folder of a run of checkpoints: one writer, one reader."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.checkpoints.io_rows import IO_COLUMNS, IO_DTYPE, PROGRESS_COLUMNS, PROGRESS_DTYPE, IoRows
from dlemu.config import to_yaml
from dlemu.emulator.journal import ADVICE
from dlemu.results.answer_files import to_json
from dlemu.results.checkpoint_run import FACTS_VERSION, CheckpointRun, CheckpointRunFacts
from dlemu.results.folder import (
    BLOCK_TRACE,
    CONFIG,
    FACTS,
    SUMMARY,
    TELEMETRY,
    read_table,
    read_telemetry,
    write_table,
)
from dlemu.results.sent_files import decode_sent
from dlemu.telemetry import to_table, trace_to_table

ROWS, PROGRESS = "checkpoints.parquet", "checkpoint_progress.parquet"


def holds_checkpoints(folder: str) -> bool:
    """Say whether the folder is that of a run of checkpoints."""
    return os.path.exists(os.path.join(folder, ROWS))


def write_checkpoint_run(run: CheckpointRun) -> None:
    """Write what was measured, all that `read_checkpoint_run` needs. Raises SpaceError."""
    folder = run.folder
    write_text(folder, CONFIG, to_yaml(run.facts.workload), advice=ADVICE)
    write_text(folder, FACTS, to_json(run.facts), advice=ADVICE)
    write_table(folder, ROWS, _table(run.rows, IO_COLUMNS))
    write_table(folder, PROGRESS, _table(run.progress, PROGRESS_COLUMNS))
    if run.telemetry:
        write_table(folder, TELEMETRY, to_table(run.telemetry))
        trace = trace_to_table(run.telemetry)
        if trace is not None:
            write_table(folder, BLOCK_TRACE, trace)


def write_checkpoint_summary(run: CheckpointRun) -> None:
    """Write what is computed of a run; raises SpaceError."""
    write_text(run.folder, SUMMARY, to_json(run.summary), advice=ADVICE)


def read_checkpoint_run(folder: str) -> CheckpointRun:
    """Read the folder of a run of checkpoints; raises UserError for one without a result or a damaged one.

    Every number is computed anew from the rows, whatever summary.json says.
    """
    path = os.path.join(folder, FACTS)
    facts = decode_sent(path, CheckpointRunFacts)
    if facts.facts_version > FACTS_VERSION:
        raise UserError(f"{path} has facts_version {facts.facts_version}, wanted {FACTS_VERSION}: update dlemu")
    rows, progress = _rows(folder, ROWS, IO_DTYPE), _rows(folder, PROGRESS, PROGRESS_DTYPE)
    for name, part in ((ROWS, rows), (PROGRESS, progress)):
        if len(part) and not 0 <= int(part["rank"].min()) <= int(part["rank"].max()) < facts.ranks:
            raise UserError(f"{os.path.join(folder, name)} is damaged: it has rows of ranks that the run has not")
    try:
        telemetry = read_telemetry(folder, facts.recorders)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{os.path.join(folder, TELEMETRY)} is damaged ({error}): copy it again") from error
    return CheckpointRun(folder, facts, rows, progress, telemetry)


def _table(rows: IoRows, meanings: Mapping[str, str]) -> pa.Table:
    fields = [pa.field(name, pa.int64(), nullable=False, metadata={"meaning": meanings[name]}) for name in meanings]
    return pa.table({name: rows[name] for name in meanings}).cast(pa.schema(fields))


def _rows(folder: str, name: str, kind: np.dtype[np.void]) -> IoRows:
    table = read_table(folder, name)
    path = os.path.join(folder, name)
    if table is None:
        raise UserError(f"{path} is missing: the run's numbers can't be computed; copy it again")
    assert kind.names is not None  # it has columns
    rows = np.zeros(table.num_rows, kind)
    for column in kind.names:
        if column not in table.column_names or not pa.types.is_integer(table[column].type) or table[column].null_count:
            raise UserError(f"{path} is damaged: wanted a column {column} of whole numbers")
        rows[column] = table[column].to_numpy()
    return rows
