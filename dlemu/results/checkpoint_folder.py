"""The folder of a run of checkpoints: one writer, one reader."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.checkpoints.io_rows import ADDED_COLUMNS, IO_COLUMNS, IO_DTYPE, PROGRESS_COLUMNS, PROGRESS_DTYPE, IoRows
from dlemu.config import to_yaml
from dlemu.config.published import published
from dlemu.emulator.checkpoint_loop import salvage_checkpoints
from dlemu.emulator.journal import ADVICE
from dlemu.results.answer_files import to_json
from dlemu.results.checkpoint_run import FACTS_VERSION, CheckpointRun, CheckpointRunFacts
from dlemu.results.checkpoint_summary import CheckpointSummary
from dlemu.results.folder import (
    BLOCK_TRACE,
    CHECKPOINT_KIND,
    CHECKPOINT_ROWS,
    CONFIG,
    FACTS,
    SUMMARY,
    TELEMETRY,
    read_table,
    read_telemetry,
    write_table,
)
from dlemu.results.live import salvaged
from dlemu.results.live_place import KILLED, LIVE, LIVE_CHECKPOINT_FACTS, holds_live_checkpoints
from dlemu.results.sent_files import decode_sent
from dlemu.results.summary import SCHEMA_VERSION
from dlemu.telemetry import to_table, trace_to_table

PROGRESS = "checkpoint_progress.parquet"
_MOST = 10**6
"""Ranks of a run, and experts of all layers of a model: none has as many, and each takes time."""


def write_checkpoint_run(run: CheckpointRun) -> None:
    """Write what was measured, all that `read_checkpoint_run` needs. Raises SpaceError."""
    folder = run.folder
    write_text(folder, CONFIG, to_yaml(run.facts.workload), advice=ADVICE)
    write_table(folder, CHECKPOINT_ROWS, _table(run.rows, IO_COLUMNS))
    write_table(folder, PROGRESS, _table(run.progress, PROGRESS_COLUMNS))
    if run.telemetry:
        write_table(folder, TELEMETRY, to_table(run.telemetry))
        trace = trace_to_table(run.telemetry)
        if trace is not None:
            write_table(folder, BLOCK_TRACE, trace)
    write_text(folder, FACTS, to_json(run.facts), advice=ADVICE)  # last: until it is there, the live part is the result


def write_checkpoint_summary(run: CheckpointRun) -> None:
    """Write what is computed of a run; raises SpaceError."""
    write_text(run.folder, SUMMARY, to_json(run.summary), advice=ADVICE)


def read_checkpoint_run(folder: str) -> CheckpointRun:
    """Read the folder of a run of checkpoints; raises UserError for one without a result or a damaged one.

    Every number is computed anew from the rows, whatever summary.json says. A run that was killed before it was saved
    is read from what its ranks left in live/.
    """
    path = os.path.join(folder, FACTS)
    if not os.path.lexists(path) and holds_live_checkpoints(folder):
        run = _read_live(folder)
    else:
        facts = _read_facts(path)
        rows, progress = _rows(folder, CHECKPOINT_ROWS, IO_DTYPE), _rows(folder, PROGRESS, PROGRESS_DTYPE)
        try:
            telemetry = read_telemetry(folder, facts.recorders)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{os.path.join(folder, TELEMETRY)} is damaged ({error}): copy it again") from error
        run = CheckpointRun(folder, facts, rows, progress, telemetry)
    _check(run)
    return run


def read_checkpoint_summary(folder: str) -> CheckpointSummary:
    """Read summary.json as it stands, for what is to be compared with the computed one; raises UserError."""
    path = os.path.join(folder, SUMMARY)
    saved = decode_sent(path, CheckpointSummary)
    if saved.schema_version != SCHEMA_VERSION or saved.kind != CHECKPOINT_KIND:
        raise UserError(
            f"{path} has schema_version {saved.schema_version!r} and kind {saved.kind!r}, wanted {SCHEMA_VERSION} and "
            f"{CHECKPOINT_KIND!r}: it is of another dlemu"
        )
    return saved


def _read_facts(path: str) -> CheckpointRunFacts:
    facts = decode_sent(path, CheckpointRunFacts)
    if facts.facts_version > FACTS_VERSION:
        raise UserError(f"{path} has facts_version {facts.facts_version}, wanted {FACTS_VERSION}: update dlemu")
    return replace(facts, workload=published(facts.workload))  # older versions wrote all options down


def _read_live(folder: str) -> CheckpointRun:
    facts = _read_facts(os.path.join(folder, LIVE, LIVE_CHECKPOINT_FACTS))
    log = salvaged(folder, salvage_checkpoints)
    if log is None or not len(log.rows):
        raise UserError(f"{folder} is of a run that was killed before its first file was measured: run it again")
    heads = tuple(host.head for host in log.telemetry)
    known = replace(facts, journal=log.journal, recorders=heads, failure=KILLED)
    return CheckpointRun(folder, known, log.rows, log.progress, log.telemetry)


def _check(run: CheckpointRun) -> None:
    """Raise UserError for facts and rows that can't be of one run: any memory and time could go there."""
    facts, journal, model = run.facts, run.facts.journal, run.facts.workload.model
    if facts.ranks > _MOST or model.num_layers * max(1, model.transformer.num_experts) > _MOST:
        raise UserError(f"{run.folder} is damaged: its facts have more ranks, or layers and experts, than any model")
    for part in (run.rows, run.progress):
        if len(part) and not 0 <= int(part["rank"].min()) <= int(part["rank"].max()) < facts.ranks:
            raise UserError(f"{run.folder} is damaged: it has rows of ranks that the run has not")
    nodes = set(journal.rank_nodes)
    if len(run.rows) and (len(journal.rank_nodes) != facts.ranks or not nodes <= set(range(len(journal.hosts)))):
        raise UserError(f"{run.folder} is damaged: its journal does not say on which host each of its ranks was")
    try:
        _ = run.summary
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError, struct.error) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{run.folder} is damaged: its numbers can't be computed ({what}); copy it again") from error


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
        if column in ADDED_COLUMNS and column not in table.column_names:
            continue
        if column not in table.column_names or not pa.types.is_integer(table[column].type) or table[column].null_count:
            raise UserError(f"{path} is damaged: wanted a column {column} of whole numbers")
        rows[column] = table[column].to_numpy()
    return rows
