"""A run's folder: every file written under a temporary name and renamed, so that what has its name is complete."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datagen.atomic import write_file, write_text
from dlemu.emulator.steplog import STEP_COLUMNS, StepRows


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
