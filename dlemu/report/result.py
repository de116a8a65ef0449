"""What lies in the folders that commands leave: read once, checked, and handed to figures and pages as plain values."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.emulator.steplog import TRAINING, StepRows
from dlemu.results.summary import SCHEMA_VERSION

Floats = NDArray[np.float64]


_NEEDED = (
    *("complete", "failure", "passed", "verdict", "workload", "accelerator", "scale", "ranks", "hosts"),
    *("ranks_per_host", "started_at", "metrics", "evaluation", "checkpoints", "audit", "dataset", "how"),
    *("environment", "issues"),
)
"""Keys of summary.json without which there is nothing to show."""


@dataclass(frozen=True)
class Reading:
    """One metric of one source over time."""

    host: str
    probe: str
    source: str
    metric: str
    seconds: Floats
    """Since the start of training, on the host's own clock."""
    values: Floats


@dataclass(frozen=True)
class Run:
    """One training run."""

    folder: str
    summary: dict[str, Any]
    config: str
    """The composed configuration as YAML, empty when the folder has none."""
    steps: StepRows | None
    telemetry: pa.Table | None
    block_trace: pa.Table | None

    @property
    def metrics(self) -> dict[str, Any]:
        """The `metrics` of summary.json."""
        metrics: dict[str, Any] = self.summary["metrics"]
        return metrics

    @property
    def title(self) -> str:
        """What ran, in a few words."""
        kind = f"x {self.summary['accelerator']}" if self.summary["accelerator"] else "ranks"
        return f"{self.summary['workload']}: {self.summary['ranks']} {kind}"

    @cached_property
    def training(self) -> StepRows | None:
        """The step log's training rows, None when there are none."""
        rows = None if self.steps is None else self.steps[self.steps["phase"] == TRAINING]
        return rows if rows is not None and len(rows) else None

    @cached_property
    def _rank_start_ns(self) -> dict[int, int]:
        """When training began, by each rank's clock: its first step is free at the same moment on all of them."""
        if self.training is None:
            return {}
        rows = self.training[self.training["epoch"] == self.training["epoch"].min()]
        first = rows[rows["step"] == rows["step"].min()]
        return dict(zip(first["rank"].tolist(), first["free_ns"].tolist(), strict=True))

    @cached_property
    def host_start_ns(self) -> dict[str, int]:
        """When training began, by each host's clock."""
        starts, before = {}, 0
        for host, count in zip(self.summary["hosts"], self.summary["ranks_per_host"], strict=True):
            found = [self._rank_start_ns[rank] for rank in range(before, before + count) if rank in self._rank_start_ns]
            if found:
                starts[host] = min(found)
            before += count
        return starts

    def seconds(self, column: str, rows: StepRows) -> Floats:
        """Return a column of stamps as seconds since the start of training, each rank by its own clock."""
        starts = self._rank_start_ns
        begins = np.array([starts.get(rank, 0) for rank in range(int(rows["rank"].max()) + 1)])
        stamps: Floats = (rows[column] - begins[rows["rank"]]) / 1e9
        return stamps

    def readings(self, probe: str, *metrics: str) -> list[Reading]:
        """Return the telemetry of a probe's metrics, by host, source and metric; empty when there is none."""
        return [one for one in self._readings if one.probe == probe and (not metrics or one.metric in metrics)]

    def device_readings(self, probe: str, *metrics: str) -> list[Reading]:
        """Return the same of those devices alone whose bytes are the dataset's: each request counted once."""
        found = self.readings(probe, *metrics)
        devices = (self.summary.get("telemetry") or {}).get("devices")
        if not devices:
            return found
        counted = {(one["host"], one["name"]) for one in devices if one["counted"]}
        return [one for one in found if (one.host, one.source) in counted]

    @cached_property
    def _readings(self) -> tuple[Reading, ...]:
        if self.telemetry is None or not self.host_start_ns:
            return ()
        keys = ["host", "probe", "source", "metric"]
        table = pa.table({name: _plain(self.telemetry[name]) for name in (*keys, "time_ns", "value")})
        grouped = table.group_by(keys).aggregate([("time_ns", "list"), ("value", "list")])
        rows = sorted(grouped.to_pylist(), key=lambda row: [row[key] for key in keys])
        return tuple(self._reading(row) for row in rows if row["host"] in self.host_start_ns)

    def _reading(self, row: dict[str, Any]) -> Reading:
        order = np.argsort(row["time_ns_list"], kind="stable")
        seconds = (np.array(row["time_ns_list"])[order] - self.host_start_ns[row["host"]]) / 1e9
        values = np.array(row["value_list"], np.float64)[order]
        return Reading(row["host"], row["probe"], row["source"], row["metric"], seconds, values)


def open_run(folder: str) -> Run:
    """Read a run's folder; raises UserError for one that holds no result or a damaged one."""
    summary = read_json(folder, "summary.json")
    version = summary.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{os.path.join(folder, 'summary.json')} has schema_version {version!r}, wanted {SCHEMA_VERSION}: it is no "
            "result of this version of dlemu's train (DLIO's own summary.json is another thing)"
        )
    missing = [key for key in _NEEDED if key not in summary]
    if missing:
        raise UserError(f"{os.path.join(folder, 'summary.json')} is damaged: it lacks {', '.join(missing)}")
    steps = read_table(folder, "steps.parquet")
    return Run(
        folder=folder,
        summary=summary,
        config=_read_text(os.path.join(folder, "config.yaml")),
        steps=None if steps is None else _as_rows(steps),
        telemetry=read_table(folder, "telemetry.parquet"),
        block_trace=read_table(folder, "block_trace.parquet"),
    )


def read_json(folder: str, name: str) -> dict[str, Any]:
    """Return a JSON file of the folder, which must be one mapping; raises UserError."""
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as lines:
            value = json.load(lines)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; name the folder of a result") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): it is not the JSON that dlemu wrote") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds no mapping")
    return value


def read_table(folder: str, name: str) -> pa.Table | None:
    """Return a Parquet file of the folder, None when it is missing; raises UserError for a damaged one."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} is damaged ({error}): copy it again or move it away") from error


def _as_rows(table: pa.Table) -> StepRows:
    rows = np.zeros(table.num_rows, [(name, np.int64) for name in table.column_names])
    for name in table.column_names:
        rows[name] = table[name].to_numpy()
    return rows


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            return lines.read()
    except FileNotFoundError:
        return ""


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without its dictionary, by which Arrow does not group."""
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
