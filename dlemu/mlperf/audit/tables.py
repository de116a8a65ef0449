"""Audited runs as tables in files, a row a run, and as plain data for programs and reports."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from datagen.errors import SpaceError
from dlemu.mlperf.audit.run import AuditedRun, row

_TEXTS = ("path", "workload", "accelerator", "basis", "verdict_printed", "printed_by", "findings")
_COUNTS = ("accelerators", "hosts", "epochs", "steps_per_epoch", "ranks_kept", "errors", "warnings")


def plain(run: AuditedRun) -> dict[str, Any]:
    """Return a run as plain data: its row, with each epoch's numbers and each finding as a mapping."""
    told: dict[str, Any] = dict(row(run))
    told["au_threshold_percent"] = run.setup.au_threshold_percent
    told["epochs_printed"] = {
        "au_percent": list(run.printed.au_by_epoch),
        "samples_per_second": list(run.printed.samples_per_second_by_epoch),
    }
    told["epochs_recomputed"] = {
        name: {"au_percent": _finite(one.au_by_epoch), "samples_per_second": _finite(one.samples_per_second_by_epoch)}
        for name, one in run.recomputed.formulas.items()
    }
    told["findings"] = [asdict(finding) for finding in run.findings]
    return told


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if abs(value) < float("inf") else None for value in values]


def write_csv(path: str, runs: Sequence[AuditedRun]) -> None:
    """Write one line a run with the columns' names above; raises SpaceError."""
    rows = [row(run) for run in runs]

    def write(part: str) -> None:
        with open(part, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    _written(path, write)


def write_json(path: str, told: object) -> None:
    """Write plain data as JSON; raises SpaceError."""

    def write(part: str) -> None:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(told, file, indent=1, allow_nan=False)

    _written(path, write)


def write_parquet(path: str, runs: Sequence[AuditedRun]) -> None:
    """Write one row a run; raises SpaceError. Columns have the same types whatever the runs hold."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row(run) for run in runs]
    kinds = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_COUNTS, pa.int64())
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in rows[0]])
    table = pa.Table.from_pylist(rows, schema=schema)
    _written(path, lambda part: pq.write_table(table, part, compression="zstd"))


def _written(path: str, write: Callable[[str], None]) -> None:
    part = f"{path}.part"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write(part)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space" if full else "give a file in a folder that you may write"
        raise SpaceError(f"{path} could not be written: {error.strerror or error}; {advice}") from error
