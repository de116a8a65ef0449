"""A run's folder: every file written under a temporary name and renamed, so that what has its name is complete."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datagen.errors import SpaceError
from dlemu.emulator.files import write_file, write_text
from dlemu.emulator.steplog import STEP_COLUMNS, StepRows
from dlemu.telemetry import Telemetry, to_table, trace_to_table


def make_folder(folder: str) -> None:
    """Create a run's folder with its live part; raises SpaceError when it can't be written.

    Everything in it belongs to one run: a folder that has a summary.json is refused.
    """
    try:
        os.makedirs(os.path.join(folder, "live"), exist_ok=True)
    except OSError as error:
        raise SpaceError(
            f"the results folder {folder} can't be made: {error.strerror}; set output.folder to a folder you may write"
        ) from error
    if os.path.exists(os.path.join(folder, "summary.json")):
        raise SpaceError(f"{folder} holds the results of another run; set output.folder to a new folder")


def write_summary(folder: str, summary: dict[str, Any]) -> None:
    """Write summary.json."""
    write_text(folder, "summary.json", json.dumps(summary, indent=2) + "\n")


def write_steps(folder: str, rows: StepRows) -> None:
    """Write steps.parquet: one row a rank and step, each column's meaning in the schema's metadata."""
    fields = [
        pa.field(name, pa.int64(), nullable=False, metadata={"meaning": text}) for name, text in STEP_COLUMNS.items()
    ]
    table = pa.table([pa.array(rows[name]) for name in STEP_COLUMNS], schema=pa.schema(fields))
    write_file(folder, "steps.parquet", lambda path: pq.write_table(table, path, compression="zstd"))


def write_telemetry(folder: str, telemetry: Telemetry) -> None:
    """Write telemetry.parquet: one row a reading."""
    table = to_table(telemetry)
    write_file(folder, "telemetry.parquet", lambda path: pq.write_table(table, path, compression="zstd"))


def write_block_trace(folder: str, telemetry: Telemetry) -> None:
    """Write block_trace.parquet: one row a bin of a histogram; nothing when no host traced."""
    table = trace_to_table(telemetry)
    if table is not None:
        write_file(folder, "block_trace.parquet", lambda path: pq.write_table(table, path, compression="zstd"))


def drop_live(folder: str) -> None:
    """Remove the live part once its content stands in steps.parquet and summary.json."""
    shutil.rmtree(os.path.join(folder, "live"), ignore_errors=True)


def drop_folder(folder: str) -> None:
    """Remove the folder of a run that measured nothing, and the folders above that it leaves empty."""
    drop_live(folder)
    with contextlib.suppress(OSError):  # something else lies there; it stays
        os.removedirs(folder)
