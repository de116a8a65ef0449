"""Results of a document's steps as rows, each a drive and named values; and of these the quantities of its tables."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dlemu.contrib.reproduce.document import DeclaredTable
from dlemu.contrib.reproduce.run import Reproduced
from dlemu.extend import UserError
from dlemu.report.units import short_names
from dlemu.results.kinds import kind_of_command, read_result
from dlemu.results.wording import count

Row = dict[str, Any]
MIB_PER_MB = 1e6 / 2**20
MOMENTS = 300  # points of a line over time


def rows_of(answer: Reproduced, folder: str) -> list[Row]:
    """Return a row for each point of a document's sweeps, and each cell of its probes (the fastest last).

    Each has the name of its `step` and its `drive` in short; that of a point the folder of its `run`. Raises UserError
    where the results of a step are gone.
    """
    question, rows = answer.question, list[Row]()
    drives = short_names(question.drives)
    for step in (step for step in answer.steps if step.command != "datagen"):
        place = os.path.join(folder, step.folder)
        kind = kind_of_command(step.command)
        if not kind.holds(place):
            raise UserError(f"{place} holds no result of `dlemu {step.command}`: put it back, or reproduce this again")
        result = kind.load().read(place)
        if step.command == "probe":
            position = int(step.name.rpartition("-")[2]) - 1
            cells = sorted(result.cells, key=lambda cell: -cell.mb_per_second)[::-1]
            on = {"step": step.name, "drive": drives[question.drives[position]]}
            rows += [on | _of_cell(answer, position, cell) for cell in cells]
            continue
        for point in (point for point in result.points if point.figures is not None):
            drive = os.path.dirname(point.settings.get("dataset.data_folder", question.drives[0] + "/"))
            rows.append(
                {
                    "step": step.name,
                    "drive": drives.get(drive, drive),
                    "run": os.path.join(place, point.folder),
                    "ranks": point.figures.ranks,
                    **{metric: value.mean for metric, value in point.figures.metrics.items()},
                    **{key: int(value) for key, value in point.settings.items() if value.isdecimal()},
                }
            )
    return rows


def _of_cell(answer: Reproduced, position: int, cell: Any) -> Row:
    question, capacity, gb_per_second = answer.question, answer.capacity_tb[position], cell.mb_per_second / 1000
    return {
        "mb_per_second": cell.mb_per_second,
        "iops": cell.iops,
        "mean_latency_ms": cell.latency_ms.mean if cell.latency_ms else None,
        "price_per_tb": question.price[position] / capacity if question.price and capacity else None,
        "size": f"{cell.size_bytes >> 10:>4} KiB",
        "workers": cell.in_flight,
        "gb_per_second": gb_per_second,
        "gb_per_second_per_watt": gb_per_second / question.watts[position] if question.watts else None,
    }


class Panel(NamedTuple):
    """A quantity of a document, for each drive or run."""

    title: str
    across: str
    """What is varied, such as accelerators."""
    values: dict[tuple[str, Any], float]
    """(drive or run, value of what is varied) -> quantity."""
    shape: str


def panels_of(rows: Sequence[Row], table: DeclaredTable) -> list[Panel]:
    """Return the quantities of a table; where drives are what is varied, they are places of one series."""
    rows, panels = [row for row in rows if row["step"].startswith(table.of)], []
    if table.shape == "time saved":
        rows = list(_saved(rows))
    ((across, varied),) = table.across.items()
    for part in sorted({row[table.by] for row in rows}) if table.by else [""]:
        own = [row for row in rows if not table.by or row[table.by] == part]
        for title, name in table.values.items():
            known = [row for row in own if row.get(name) is not None]
            values = {("" if varied == "drive" else row["drive"], row[varied]): row[name] for row in known}
            if values:
                panels.append(Panel(f"{title}, {part.strip()}" if part else title, across, values, table.shape))
    return panels


def _saved(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield what the first of two drives saves in a year; of runs with a verdict, whole epochs and equal work."""
    from dlemu.api import compare

    drives = list(dict.fromkeys(row["drive"] for row in rows))
    for pair in compare(os.path.dirname(rows[0]["run"])).runs if len(drives) == 2 else ():
        if (plan := pair.plan) is not None:
            faster = 100 * (1 - plan.hours_per_model[0] / plan.hours_per_model[1])
            saved = {"faster_percent": faster, "days_saved_per_year": plan.days_saved_per_year}
            for drive, models in zip(drives, plan.models_per_year, strict=True):
                yield {"drive": drive, "ranks": pair.a.ranks, "models_per_year": models, **saved}
                saved = {}


def over_time(rows: Sequence[Row], table: DeclaredTable) -> Iterator[Panel]:
    """Yield throughput and queue depth over time, and the share of the readings at each depth, a line for each run."""
    own = [row for row in rows if row["step"].startswith(table.of)]
    several = len({row["drive"] for row in own}) > 1
    runs = {count(row["ranks"], "accelerator") + f", {row['drive']}" * several: read_result(row["run"]) for row in own}
    for title, metric, factor in (
        ("throughput, MiB/s", "read_mb_per_second", MIB_PER_MB),
        ("mean queue depth", "mean_queue_depth", 1.0),
    ):
        moments = {on: _by_moment(run.device_series("block", metric)) for on, run in runs.items()}
        values = {(on, at): factor * value for on, each in moments.items() for at, value in each.items()}
        yield Panel(title, "seconds since training began", values, table.shape)
    shares: dict[tuple[str, Any], float] = {}
    for on, run in runs.items():
        depths = [one.values[one.seconds >= 0].astype(int) for one in run.device_series("block", "in_flight")]
        counts = np.bincount(np.concatenate([*depths, np.empty(0, int)]))
        shares |= {(on, depth): 100 * int(counts[depth]) / counts.sum() for depth in np.flatnonzero(counts).tolist()}
    yield Panel("share of the time, %", "requests in the queue", shares, "bars")


def _by_moment(sources: Sequence[Any]) -> dict[float, float]:
    """Return the sum of several devices' readings, each the mean of its part of the run, by the end of that part."""
    ends = np.linspace(0, max((float(one.seconds.max(initial=0)) for one in sources), default=0.0), MOMENTS + 1)
    values: dict[float, float] = defaultdict(float)
    for one in sources:
        counts, sums = (np.histogram(one.seconds, ends, weights=weights)[0] for weights in (None, one.values))
        for part in np.flatnonzero(counts).tolist():
            values[round(float(ends[part + 1]), 3)] += float(sums[part] / counts[part])
    return values
