"""Turns the results of a document's steps into rows of named values, and the rows into the panels of its tables."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dlemu.contrib.reproduce.document import DeclaredTable, DocumentQuestion
from dlemu.contrib.reproduce.run import Reproduced
from dlemu.extend import UserError
from dlemu.report.units import short_names
from dlemu.results.kinds import kind_of_command, read_result
from dlemu.results.wording import count

Row = dict[str, Any]
MIB_PER_MB = 1e6 / 2**20
TIME_POINTS = 300  # on a line over time


def rows_of(answer: Reproduced, folder: str) -> Iterator[Row]:
    """Yield a row for each point of a document's sweeps, and for each cell of its probes (the fastest last).

    A row has `step`, a name, and `drive`, a short name; a point's row also has `run`, a folder. Raises UserError.
    """
    drives = answer.question.drives
    drive_names = short_names(drives)
    for step in answer.steps:
        if step.command == "datagen":
            continue
        path = os.path.join(folder, step.folder)
        kind = kind_of_command(step.command)
        if not kind.holds(path):
            raise UserError(f"{path} holds no result of `dlemu {step.command}`: put it back, or reproduce this again")
        result = kind.read(path)
        if step.command == "probe":
            drive_index = int(step.name.rpartition("-")[2]) - 1  # of NAME-1, NAME-2, ... (`Document.plan`)
            common = {"step": step.name, "drive": drive_names[drives[drive_index]]}
            for cell in sorted(result.cells, key=lambda cell: cell.mb_per_second):
                yield common | _cell_values(answer.question, drive_index, cell, result.environment.storage.total_bytes)
            continue
        for point in result.points:
            if point.figures is None:  # it failed
                continue
            # The dataset is in a folder of the drive; without the setting, there is a single drive.
            drive = os.path.dirname(point.settings.get("dataset.data_folder", drives[0] + "/"))
            yield {
                "step": step.name,
                "drive": drive_names.get(drive, drive),
                "run": os.path.join(path, point.folder),
                "ranks": point.figures.ranks,
                **{metric: value.mean for metric, value in point.figures.metrics.items()},
                **{key: int(value) for key, value in point.settings.items() if value.isdecimal()},
            }


def _cell_values(question: DocumentQuestion, drive_index: int, cell: Any, drive_bytes: int | None) -> Row:
    """Return the values of one cell of a drive's probe; those of an unknown price, capacity or power are None."""
    gb_per_second = cell.mb_per_second / 1000
    return {
        "mb_per_second": cell.mb_per_second,
        "iops": cell.iops,
        "mean_latency_ms": cell.latency_ms.mean,
        "price_per_tb": question.price[drive_index] / (drive_bytes / 1e12) if question.price and drive_bytes else None,
        "size": f"{cell.size_bytes >> 10:>4} KiB",  # padded, as panels are sorted by this text
        "workers": cell.in_flight,
        "gb_per_second": gb_per_second,
        "gb_per_second_per_watt": gb_per_second / question.watts[drive_index] if question.watts else None,
    }


class Panel(NamedTuple):
    """One quantity of a table, for each drive or run."""

    title: str
    across: str  # title of the x axis, such as accelerators
    values: dict[tuple[str, Any], float]  # (drive or run, x value) -> quantity
    shape: str


def panels_of(rows: Iterable[Row], table: DeclaredTable) -> list[Panel]:
    """Return a panel per quantity and, if the table has `by`, per value of it; panels without values are left out.

    Across `ranks`, values are {("drive a", 1): 90.0, ...}; across drives, they are {("", "drive a"): 90.0, ...}.
    """
    rows = [row for row in rows if row["step"].startswith(table.of)]
    panels = []
    if table.shape == "time saved":
        rows = list(_time_saved(rows))
    ((x_title, x_key),) = table.across.items()
    for group in sorted({row[table.by] for row in rows}) if table.by else [""]:  # "": all rows
        for quantity, key in table.values.items():
            group_rows = [row for row in rows if row.get(key) is not None and row.get(table.by, "") == group]
            values = {("" if x_key == "drive" else row["drive"], row[x_key]): row[key] for row in group_rows}
            title = f"{quantity}, {group.strip()}" if group else quantity
            if values:
                panels.append(Panel(title, x_title, values, table.shape))
    return panels


def _time_saved(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a row per drive, of two: the models that it trains in a year and, for the first, the time that it saves."""
    from dlemu.api import compare

    drives = list(dict.fromkeys(row["drive"] for row in rows))
    if len(drives) != 2:
        return
    for pair in compare(os.path.dirname(rows[0]["run"])).runs:
        if (plan := pair.plan) is not None:
            faster_percent = 100 * (1 - plan.hours_per_model[0] / plan.hours_per_model[1])
            savings = {"faster_percent": faster_percent, "days_saved_per_year": plan.days_saved_per_year}
            for drive, models in zip(drives, plan.models_per_year, strict=True):
                row = {"drive": drive, "ranks": pair.a.ranks, "models_per_year": models}
                yield row | savings if drive == drives[0] else row


def over_time(rows: Sequence[Row], table: DeclaredTable) -> Iterator[Panel]:
    """Yield panels of throughput, queue depth, and the share of the time at each depth, with a line for each run."""
    rows = [row for row in rows if row["step"].startswith(table.of)]
    has_drives = len({row["drive"] for row in rows}) > 1
    runs: dict[str, Any] = {}
    for row in rows:
        name = count(row["ranks"], "accelerator")
        runs[f"{name}, {row['drive']}" if has_drives else name] = read_result(row["run"])
    for title, metric, factor in (
        ("throughput, MiB/s", "read_mb_per_second", MIB_PER_MB),
        ("mean queue depth", "mean_queue_depth", 1.0),
    ):
        values = {}
        for name, run in runs.items():
            for second, value in _by_second(run.device_series("block", metric)).items():
                values[name, second] = factor * value
        yield Panel(title, "seconds since training began", values, table.shape)
    shares: dict[tuple[str, Any], float] = {}
    for name, run in runs.items():
        depths = [series.values[series.seconds >= 0].astype(int) for series in run.device_series("block", "in_flight")]
        readings = np.bincount(np.concatenate([*depths, np.empty(0, int)]))  # number of readings of each depth
        percent = 100 * readings / readings.sum()
        shares |= {(name, depth): percent[depth] for depth in np.flatnonzero(readings).tolist()}
    yield Panel("share of the time, %", "requests in the queue", shares, "bars")


def _by_second(devices: Sequence[Any]) -> dict[float, float]:
    """Return end (s) -> sum of the devices' mean readings, for each of TIME_POINTS intervals that has any."""
    bounds = np.linspace(0, max((series.seconds.max(initial=0) for series in devices), default=0), TIME_POINTS + 1)
    values: dict[float, float] = defaultdict(float)
    for series in devices:
        counts = np.histogram(series.seconds, bounds)[0]
        sums = np.histogram(series.seconds, bounds, weights=series.values)[0]
        for interval in np.flatnonzero(counts).tolist():
            values[round(float(bounds[interval + 1]), 3)] += float(sums[interval] / counts[interval])
    return values
