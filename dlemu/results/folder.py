"""A run's folder: one writer, one reader. What has its name is complete: files are written under temporary ones."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datagen.atomic import write_file, write_text
from datagen.errors import UserError
from dlemu.comm.cgroup_limits import host_memory
from dlemu.config import load_received, to_yaml
from dlemu.config.published import published
from dlemu.config.validate import check
from dlemu.emulator.journal import ADVICE
from dlemu.emulator.steplog import STEP_COLUMNS, STEP_DTYPE
from dlemu.metrics.rows import GROUP_ROWS, ColumnStore, Rows, StepTable, in_order
from dlemu.results.answer_files import to_json
from dlemu.results.live import read_live
from dlemu.results.live_place import LIVE, LIVE_FACTS, holds_live, holds_live_checkpoints
from dlemu.results.older import facts_of_older
from dlemu.results.run import FACTS_VERSION, Facts, Run
from dlemu.results.sent_files import decode_sent, open_sent
from dlemu.results.summary import SCHEMA_VERSION, Summary
from dlemu.telemetry import RecorderHead, Telemetry, from_tables, to_table

SUMMARY, FACTS, CONFIG, STEPS = "summary.json", "facts.json", "config.yaml", "steps.parquet"
CHECKPOINT_KIND = "checkpoint"
"""`kind` in the summary.json of a run that wrote and read checkpoints; that of training has none."""
CHECKPOINT_ROWS = "checkpoints.parquet"
TELEMETRY, BLOCK_TRACE = "telemetry.parquet", "block_trace.parquet"
_MOST_TABLE_BYTES = 64 << 30
_LATEST_NS = 1 << 60
"""36 years after the host was started; sums of such numbers overflow."""
_BOUNDED = ("free_ns", "wait_ns", "compute_ns", "samples", "app_bytes")
"""Columns whose values lie between 0 and that."""
_READ_AT_ONCE = 1 << 20
"""Rows of which all columns are read at once."""
_MOST_ROW_BYTES = 128
"""Memory that a row wants while its numbers are computed: a few columns at a time."""
_WHOLE = "whole numbers"
_MOST_PLANNED, _MOST_BLOCKS = 10**9, 10**6
"""Steps of all ranks, and blocks of them: no run plans as many, and what is computed takes memory for each."""


def write_run(run: Run) -> None:
    """Write all files of a run into its folder, summary.json last. Raises SpaceError."""
    write_measured(run)
    write_summary(run)


def write_measured(run: Run) -> None:
    """Write what was measured: all that `read_run` needs, and nothing that is computed from it. Raises SpaceError."""
    folder = run.folder
    write_text(folder, CONFIG, to_yaml(run.facts.workload), advice=ADVICE)
    if len(run.rows):
        write_file(folder, STEPS, lambda out: _write_steps(run.rows, out), advice=ADVICE)
    if run.telemetry:
        write_table(folder, TELEMETRY, to_table(run.telemetry))
    if run.block_trace is not None:
        write_table(folder, BLOCK_TRACE, run.block_trace)
    write_text(folder, FACTS, to_json(run.facts), advice=ADVICE)  # last: until it is there, the live part is the result


def _write_steps(rows: Rows, out: BinaryIO) -> None:
    fields = [
        pa.field(name, pa.int64(), nullable=False, metadata={"meaning": text}) for name, text in STEP_COLUMNS.items()
    ]
    with pq.ParquetWriter(out, pa.schema(fields), compression="zstd") as file:
        for start in range(0, len(rows), GROUP_ROWS):
            part = rows[start : start + GROUP_ROWS]
            file.write_table(pa.table([pa.array(part[name]) for name in STEP_COLUMNS], schema=pa.schema(fields)))


def write_summary(run: Run) -> None:
    """Write what is computed of a run; raises SpaceError."""
    write_text(run.folder, SUMMARY, to_json(run.summary), advice=ADVICE)


def read_run(folder: str) -> Run:
    """Read a run's folder, also one of an older version; raises UserError for one without a result or a damaged one.

    Nothing is believed that can be computed: `summary` is made anew from the steps, whatever summary.json says, and
    also where there is none, since a run ended while it was made. A run that was killed before it was saved is read
    from what its ranks left in live/.
    """
    run = _read_run(folder)
    try:
        _ = run.summary
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{folder} is damaged: its numbers can't be computed ({what}); copy it again") from error
    return run


def _read_run(folder: str) -> Run:
    path = os.path.join(folder, FACTS)
    has_facts, has_summary = (os.path.lexists(os.path.join(folder, name)) for name in (FACTS, SUMMARY))
    if not has_facts and not has_summary and holds_live(folder):
        live = _read_facts(os.path.join(folder, LIVE, LIVE_FACTS))
        return _checked(read_live(folder, live), os.path.join(folder, LIVE))
    saved = read_summary(folder) if has_summary or not has_facts else None
    facts = _read_facts(path) if has_facts or saved is None else None
    rows = _read_rows(folder)
    if facts is None:
        assert saved is not None
        facts = facts_of_older(folder, saved, rows)
    if facts.failure is None and not len(rows):
        raise UserError(
            f"{folder} holds a complete run without {STEPS}: its numbers can't be recomputed; copy it again"
        )
    try:
        telemetry = read_telemetry(folder, facts.recorders)
    except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{os.path.join(folder, TELEMETRY)} is damaged ({error}): copy it again") from error
    return _checked(Run(folder, facts, rows, telemetry), os.path.join(folder, STEPS))


def _read_facts(path: str) -> Facts:
    facts = decode_sent(path, Facts)
    if facts.facts_version > FACTS_VERSION:
        raise UserError(f"{path} has facts_version {facts.facts_version}, wanted {FACTS_VERSION}: update dlemu")
    return replace(facts, workload=published(facts.workload))  # older versions wrote all options down


def _checked(run: Run, path: str) -> Run:
    """Return the run; raises UserError for facts and rows that can't be of one: any memory and time could go there."""
    facts = run.facts
    try:
        check(facts.workload)
    except UserError as error:
        raise UserError(f"{run.folder} is damaged: {error}") from error
    plan, journal = facts.stream_plan or facts.plan, facts.journal
    if facts.ranks < 1 or plan is None or plan.ranks != facts.ranks:
        raise UserError(f"{run.folder} is damaged: its facts are of {facts.ranks} ranks, and its plan is not")
    if min(plan.num_files, plan.num_samples_per_file, plan.batch_size) < 1:
        raise UserError(f"{run.folder} is damaged: its plan has no samples")
    steps = facts.workload.train.epochs * max(1, plan.steps_per_epoch)
    if facts.ranks * steps > _MOST_PLANNED or plan.num_samples > _MOST_PLANNED:
        raise UserError(f"{run.folder} is damaged: its facts plan more steps or samples than any run could have taken")
    every = facts.workload.checkpoint.steps_between_checkpoints
    blocks = steps // every if facts.workload.workflow.checkpoint and every > 0 else 0
    if blocks > _MOST_BLOCKS:
        raise UserError(f"{run.folder} is damaged: its facts plan {blocks} checkpoints")
    nodes = set(journal.rank_nodes)
    if len(run.rows) and (len(journal.rank_nodes) != facts.ranks or not nodes <= set(range(len(journal.hosts)))):
        raise UserError(f"{run.folder} is damaged: its journal does not say on which host each of its ranks was")
    if not {head.node for head in facts.recorders} <= set(range(len(journal.hosts))):
        raise UserError(f"{run.folder} is damaged: it was recorded on hosts that its journal does not know")
    _check_rows(path, run.rows, facts)
    return run


def read_summary(folder: str) -> Summary:
    """Read summary.json as it stands, for what is to be compared with `read_run(folder).summary`; raises UserError."""
    path = os.path.join(folder, SUMMARY)
    head = decode_sent(path, _Version)
    version = head.schema_version
    if head.kind == CHECKPOINT_KIND:
        raise UserError(f"{path} is of a run that wrote and read checkpoints; wanted a result of training")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{path} has schema_version {version!r}, wanted {SCHEMA_VERSION}: it is no result of this version of "
            "dlemu's train (DLIO's own summary.json is another thing)"
        )
    return decode_sent(path, Summary)


def holds_run(folder: str) -> bool:
    """Say whether the folder has a training run of ours, damaged or not."""
    try:
        head = decode_sent(os.path.join(folder, SUMMARY), _Version)
        return head.schema_version is not None and head.kind != CHECKPOINT_KIND
    except UserError:
        return not holds_checkpoints(folder) and (os.path.exists(os.path.join(folder, FACTS)) or holds_live(folder))


def holds_checkpoints(folder: str) -> bool:
    """Say whether the folder is that of a run of checkpoints, also one that was killed before it was saved."""
    return os.path.exists(os.path.join(folder, CHECKPOINT_ROWS)) or holds_live_checkpoints(folder)


def read_config(folder: str) -> str:
    """Return the composed configuration as YAML, as it may be shown; empty when the folder has none that loads."""
    try:
        return to_yaml(load_received(os.path.join(folder, CONFIG)))
    except UserError:
        return ""


class _Version(msgspec.Struct):
    schema_version: int | None = None
    kind: str | None = None


def write_table(folder: str, name: str, table: pa.Table) -> None:
    """Write a table as parquet; raises SpaceError."""
    write_file(folder, name, lambda out: pq.write_table(table, out, compression="zstd"), advice=ADVICE)


def read_table(folder: str, name: str) -> pa.Table | None:
    """Return a parquet file, None where there is none; raises UserError for a damaged one."""
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return None
    with open(open_sent(path, _MOST_TABLE_BYTES), "rb") as opened:
        try:
            file = pq.ParquetFile(opened)
            # Twice eight bytes a value, for a copy; a column of equal values takes next to nothing in the file.
            wanted = 16 * file.metadata.num_rows * file.metadata.num_columns
            if wanted > host_memory().available_bytes:
                raise UserError(
                    f"{path} wants {wanted / 2**30:.1f} GiB of memory, more than there is: read it on another host, or "
                    "copy it again if no run of yours took as many steps"
                )
            return file.read()
        except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
            raise UserError(f"{path} is damaged ({error}): copy it again or move it away") from error


def _read_rows(folder: str) -> Rows:
    """Return the step rows in order: of very many, a column is read when it is asked for."""
    path = os.path.join(folder, STEPS)
    if not os.path.lexists(path):
        return np.empty(0, STEP_DTYPE)
    try:
        file = _StepFile(path)
        store = ColumnStore(tuple(STEP_COLUMNS), file.groups, file.column)
        if file.rows <= _READ_AT_ONCE:
            store.load_all()
        return StepTable(store)
    except MemoryError as error:
        raise UserError(f"{path} wants more memory than there is: read it on another host") from error


class _StepFile:
    """steps.parquet, of which columns are read and checked one by one."""

    def __init__(self, path: str) -> None:
        """Raises UserError for a file that is none, or can't be of a run."""
        self._path = path
        descriptor = open_sent(path, _MOST_TABLE_BYTES)
        try:  # the file stays the same one, whatever gets its name; and it is closed with the last who reads of it
            self._file = pq.ParquetFile(pa.OSFile(f"/proc/self/fd/{descriptor}"))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UserError(f"{path} is damaged ({error}): copy it again or move it away") from error
        finally:
            os.close(descriptor)
        known = self._file.metadata
        self.groups = tuple(known.row_group(group).num_rows for group in range(known.num_row_groups))
        self.rows = sum(self.groups)
        schema = self._file.schema_arrow
        missing = [name for name in STEP_COLUMNS if schema.get_field_index(name) < 0]
        if missing:
            raise UserError(f"{path} is damaged: it lacks the columns {', '.join(missing)}")
        for name in STEP_COLUMNS:
            if not pa.types.is_integer(schema.field(name).type):
                raise UserError(
                    f"{path} is damaged: its column {name} holds {schema.field(name).type}, wanted {_WHOLE}"
                )
        wanted = _MOST_ROW_BYTES * self.rows  # a column of equal values takes next to nothing in the file
        if wanted > host_memory().available_bytes:
            raise UserError(
                f"{path} wants {wanted / 2**30:.1f} GiB of memory, more than there is: read it on another host, or "
                "copy it again if no run of yours took as many steps"
            )

    def column(self, name: str, group: int) -> NDArray[np.int64]:
        """Return a column of a row group; raises UserError for one that is damaged."""
        try:
            part = self._file.read_row_group(group, columns=[name], use_threads=False)[name]
            if part.null_count:
                raise UserError(f"{self._path} is damaged: its column {name} has gaps, wanted {_WHOLE}")
            values: NDArray[np.int64] = part.to_numpy().astype(np.int64, copy=False)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UserError(f"{self._path} is damaged ({error}): copy it again or move it away") from error
        if len(values) != self.groups[group]:
            seen = f"{len(values)} values in row group {group}, wanted {self.groups[group]}"
            raise UserError(f"{self._path} is damaged: its column {name} has {seen}")
        if name in _BOUNDED and len(values):
            _check_bounds(self._path, name, int(values.min()), int(values.max()), 0, _LATEST_NS)
        return values


def _check_rows(path: str, rows: Rows, facts: Facts) -> None:
    """Raise UserError for rows that can't be of this run; what is computed from them could take any memory and time."""
    table = in_order(rows)
    if not len(table):
        return
    for name, least, most in (
        ("rank", 0, facts.ranks - 1),
        ("phase", 0, 1),
        ("epoch", 1, facts.workload.train.epochs),
        ("block", 1, None),
    ):
        labels = table.label(name)
        _check_bounds(path, name, int(labels.min()), int(labels.max()), least, most)
    _, first, last = table.ends("step")
    _check_bounds(path, "step", int(first[0].min()), int(last[0].max()), 1, None)
    if isinstance(rows, np.ndarray):
        for name in _BOUNDED:
            _check_bounds(path, name, int(rows[name].min()), int(rows[name].max()), 0, _LATEST_NS)


def _check_bounds(path: str, name: str, lowest: int, highest: int, least: int, most: int | None) -> None:
    if lowest < least or (most is not None and highest > most):
        wanted = f"{least} or more" if most is None else f"{least} to {most}"
        raise UserError(f"{path} is damaged: its column {name} goes from {lowest} to {highest}, wanted {wanted}")


def read_telemetry(folder: str, heads: tuple[RecorderHead, ...]) -> Telemetry:
    """Return what the recorders of a run read; raises UserError, ValueError, KeyError or TypeError for damaged ones."""
    readings = read_table(folder, TELEMETRY)
    if readings is None or not heads:
        return ()
    telemetry = from_tables(heads, readings, read_table(folder, BLOCK_TRACE))
    for host in telemetry:
        if host.time_ns.dtype != np.int64 or host.value.dtype != np.float64 or not np.isfinite(host.value).all():
            raise ValueError("it holds readings that are no numbers")
    return telemetry
