"""A run's folder: one writer, one reader. What has its name is complete: files are written under temporary ones."""

from __future__ import annotations

import os
import stat
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datagen.atomic import write_file, write_text
from datagen.errors import UserError
from dlemu.config import to_yaml
from dlemu.emulator.steplog import STEP_COLUMNS, STEP_DTYPE, StepRows
from dlemu.results.older import facts_of_older
from dlemu.results.run import FACTS_VERSION, Facts, Run
from dlemu.results.summary import SCHEMA_VERSION, Summary
from dlemu.telemetry import RecorderHead, Telemetry, from_tables, to_table

SUMMARY, FACTS, CONFIG, STEPS = "summary.json", "facts.json", "config.yaml", "steps.parquet"
ADVICE = "set output.folder to a folder you may write; the step logs are kept in live/ of the run's folder"
"""What to do when a file of a run can't be written."""
CHECKPOINT_KIND = "checkpoint"
"""`kind` in the summary.json of a run that wrote and read checkpoints; that of training has none."""
TELEMETRY, BLOCK_TRACE = "telemetry.parquet", "block_trace.parquet"
_MOST_JSON_BYTES = 256 << 20
"""No run leaves as much: a summary has a few numbers for each rank and epoch."""

T = TypeVar("T")


def write_run(run: Run) -> None:
    """Write all files of a run into its folder, summary.json last. Raises SpaceError."""
    write_measured(run)
    write_summary(run)


def write_measured(run: Run) -> None:
    """Write what was measured: all that `read_run` needs, and nothing that is computed from it. Raises SpaceError."""
    folder = run.folder
    write_text(folder, CONFIG, to_yaml(run.facts.workload), advice=ADVICE)
    write_text(folder, FACTS, json_text(run.facts), advice=ADVICE)
    if len(run.rows):
        fields = [
            pa.field(name, pa.int64(), nullable=False, metadata={"meaning": text})
            for name, text in STEP_COLUMNS.items()
        ]
        write_table(folder, STEPS, run.steps.cast(pa.schema(fields)))
    if run.telemetry:
        write_table(folder, TELEMETRY, to_table(run.telemetry))
    if run.block_trace is not None:
        write_table(folder, BLOCK_TRACE, run.block_trace)


def write_summary(run: Run) -> None:
    """Write what is computed of a run; raises SpaceError."""
    write_text(run.folder, SUMMARY, json_text(run.summary), advice=ADVICE)


def read_run(folder: str) -> Run:
    """Read a run's folder, also one of an older version; raises UserError for one without a result or a damaged one.

    Nothing is believed that can be computed: `summary` is made anew from the steps, whatever summary.json says, and
    also where there is none, since a run ended while it was made.
    """
    path = os.path.join(folder, FACTS)
    rows = _read_rows(folder)
    has_facts = os.path.exists(path)
    saved = read_summary(folder) if not has_facts or os.path.exists(os.path.join(folder, SUMMARY)) else None
    if saved is None or has_facts:
        facts = decode(path, Facts)
        if facts.facts_version > FACTS_VERSION:
            raise UserError(f"{path} has facts_version {facts.facts_version}, wanted {FACTS_VERSION}: update dlemu")
    else:
        facts = facts_of_older(folder, saved, rows)
    if facts.failure is None and not len(rows):
        raise UserError(
            f"{folder} holds a complete run without {STEPS}: its numbers can't be recomputed; copy it again"
        )
    _check_rows(os.path.join(folder, STEPS), rows, facts)
    try:
        telemetry = read_telemetry(folder, facts.recorders)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{os.path.join(folder, TELEMETRY)} is damaged ({error}): copy it again") from error
    return Run(folder, facts, rows, telemetry)


def read_summary(folder: str) -> Summary:
    """Read summary.json as it stands, for what is to be compared with `read_run(folder).summary`; raises UserError."""
    path = os.path.join(folder, SUMMARY)
    head = decode(path, _Version)
    version = head.schema_version
    if head.kind == CHECKPOINT_KIND:
        raise UserError(f"{path} is of a run that wrote and read checkpoints; wanted a result of training")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{path} has schema_version {version!r}, wanted {SCHEMA_VERSION}: it is no result of this version of "
            "dlemu's train (DLIO's own summary.json is another thing)"
        )
    return decode(path, Summary)


def holds_run(folder: str) -> bool:
    """Say whether the folder has a run of ours, damaged or not."""
    try:
        head = decode(os.path.join(folder, SUMMARY), _Version)
        return head.schema_version is not None and head.kind != CHECKPOINT_KIND
    except UserError:
        return os.path.exists(os.path.join(folder, FACTS))


def read_config(folder: str) -> str:
    """Return the composed configuration as YAML; empty when the folder has none."""
    path = os.path.join(folder, CONFIG)
    return _read_bytes(path).decode(errors="replace") if os.path.exists(path) else ""


class _Version(msgspec.Struct):
    schema_version: int | None = None
    kind: str | None = None


def json_text(value: object) -> str:
    """Return a typed value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def decode(path: str, kind: type[T]) -> T:
    """Return what a JSON file holds; raises UserError for one that is not there, damaged, or not of that kind."""
    try:
        return msgspec.json.decode(_read_bytes(path), type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}): it is not the JSON that dlemu wrote") from error


def _read_bytes(path: str) -> bytes:
    """Return a file's bytes; folders of results are sent around, so a pipe or an endless file is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; name the folder of a result") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_JSON_BYTES:
            raise UserError(f"{path} is no file that dlemu wrote: it is no regular file, or far too large")
        return file.read()


def write_table(folder: str, name: str, table: pa.Table) -> None:
    """Write a table as parquet; raises SpaceError."""
    write_file(folder, name, lambda path: pq.write_table(table, path, compression="zstd"), advice=ADVICE)


def read_table(folder: str, name: str) -> pa.Table | None:
    """Return a parquet file, None where there is none; raises UserError for a damaged one."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    if not os.path.isfile(path):
        raise UserError(f"{path} is no regular file")
    try:
        return pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} is damaged ({error}): copy it again or move it away") from error


def _read_rows(folder: str) -> StepRows:
    table = read_table(folder, STEPS)
    if table is None:
        return np.empty(0, STEP_DTYPE)
    path = os.path.join(folder, STEPS)
    missing = [name for name in STEP_COLUMNS if name not in table.column_names]
    if missing:
        raise UserError(f"{path} is damaged: it lacks the columns {', '.join(missing)}")
    rows = np.zeros(table.num_rows, STEP_DTYPE)
    for name in STEP_COLUMNS:
        column = table[name]
        if not pa.types.is_integer(column.type) or column.null_count:
            raise UserError(f"{path} is damaged: its column {name} holds {column.type}, wanted whole numbers")
        rows[name] = column.to_numpy()
    return rows


def _check_rows(path: str, rows: StepRows, facts: Facts) -> None:
    """Raise UserError for rows that can't be of this run; what is computed from them could take any memory and time."""
    if not len(rows):
        return
    for name, least, most in (
        ("rank", 0, facts.ranks - 1),
        ("phase", 0, 1),
        ("epoch", 1, facts.workload.train.epochs),
        ("block", 1, None),
        ("step", 1, None),
        ("compute_ns", 0, None),
    ):
        lowest, highest = int(rows[name].min()), int(rows[name].max())
        if lowest < least or (most is not None and highest > most):
            wanted = f"{least} or more" if most is None else f"{least} to {most}"
            raise UserError(f"{path} is damaged: its column {name} goes from {lowest} to {highest}, wanted {wanted}")


def read_telemetry(folder: str, heads: tuple[RecorderHead, ...]) -> Telemetry:
    """Return what the recorders of a run read; raises UserError, ValueError, KeyError or TypeError for damaged ones."""
    readings = read_table(folder, TELEMETRY)
    if readings is None or not heads:
        return ()
    return from_tables(heads, readings, read_table(folder, BLOCK_TRACE))
