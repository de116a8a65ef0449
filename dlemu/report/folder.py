"""A run's folder: every file written under a temporary name and renamed, so that what has its name is complete."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datagen.atomic import write_file, write_text
from dlemu.emulator.steplog import STEP_COLUMNS, StepRows
from dlemu.results.folder import ADVICE
from dlemu.telemetry import Telemetry, to_table, trace_to_table


def write_summary(folder: str, summary: dict[str, Any]) -> None:
    """Write summary.json."""
    write_text(folder, "summary.json", json.dumps(summary, indent=2) + "\n", advice=ADVICE)


def write_steps(folder: str, rows: StepRows) -> None:
    """Write steps.parquet: one row a rank and step, each column's meaning in the schema's metadata."""
    fields = [
        pa.field(name, pa.int64(), nullable=False, metadata={"meaning": text}) for name, text in STEP_COLUMNS.items()
    ]
    table = pa.table([pa.array(rows[name]) for name in STEP_COLUMNS], schema=pa.schema(fields))
    write_file(folder, "steps.parquet", lambda path: pq.write_table(table, path, compression="zstd"), advice=ADVICE)


def write_telemetry(folder: str, telemetry: Telemetry) -> None:
    """Write telemetry.parquet: one row a reading."""
    table = to_table(telemetry)
    write_file(folder, "telemetry.parquet", lambda path: pq.write_table(table, path, compression="zstd"), advice=ADVICE)


def write_block_trace(folder: str, telemetry: Telemetry) -> None:
    """Write block_trace.parquet: one row a bin of a histogram; nothing when no host traced."""
    table = trace_to_table(telemetry)
    if table is not None:
        write_file(
            folder, "block_trace.parquet", lambda path: pq.write_table(table, path, compression="zstd"), advice=ADVICE
        )
