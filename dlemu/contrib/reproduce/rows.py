"""Results of the steps of a document as rows: a drive and named values, whatever command measured them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlemu.contrib.reproduce.document import DeclaredTable, Document, document_named
from dlemu.contrib.reproduce.run import Reproduced, read_reproduced
from dlemu.report.units import short_names
from dlemu.results.kinds import kind_of, kind_of_command, read_result
from dlemu.results.wording import count

MIB_PER_MB = 1e6 / 2**20
MOMENTS = 300
"""Points of a line over time."""


@dataclass(frozen=True)
class OpenedDocument:
    """A document with the results of its steps."""

    folder: str
    answer: Reproduced
    results: dict[str, Any]
    """Step name -> result; steps that make data have none, nor has one whose folder is gone."""

    @property
    def document(self) -> Document:
        return document_named(self.answer.question.document)

    @property
    def gaps(self) -> list[str]:
        """Return the folders of steps whose results are gone."""
        steps = (step for step in self.answer.steps if step.command != "datagen" and step.name not in self.results)
        return [os.path.join(self.folder, step.folder) for step in steps]

    @property
    def drives(self) -> list[str]:
        """Return short names of the drives: the parts in which their paths differ."""
        return list(short_names(self.answer.question.drives).values())

    def results_of(self, table: DeclaredTable) -> dict[str, Any]:
        """Return step -> result of those that a table is of."""
        return {name: result for name, result in self.results.items() if name.startswith(table.of)}

    def runs_of(self, table: DeclaredTable) -> dict[str, Any]:
        """Return what is measured -> run, of the points of the sweeps that a table is of."""
        found = {}
        folders = {step.name: os.path.join(self.folder, step.folder) for step in self.answer.steps}
        for name, sweep in self.results_of(table).items():
            for point in sweep.points:
                folder = os.path.join(folders[name], point.folder)
                if point.figures is not None and kind_of(folder) is not None:
                    drive = f", {self.drive_of(point.settings)}" if len(self.drives) > 1 else ""
                    found[count(point.figures.ranks, "accelerator") + drive] = read_result(folder)
        return found

    def drive_of(self, settings: dict[str, str]) -> str:
        """Return the drive of a point of a sweep; with one drive, its folder does not vary."""
        drive = os.path.dirname(settings.get("dataset.data_folder", ""))
        return short_names(self.answer.question.drives).get(drive, self.drives[0])


def open_document(folder: str) -> OpenedDocument:
    """Read a reproduced document and the results of its steps; raises UserError."""
    answer = read_reproduced(folder)
    results = {
        step.name: kind_of_command(step.command).load().read(place)
        for step in answer.steps
        if step.command != "datagen" and kind_of(place := os.path.join(folder, step.folder)) is not None
    }
    return OpenedDocument(folder, answer, results)


def rows_of(opened: OpenedDocument, table: DeclaredTable) -> Iterator[dict[str, Any]]:
    """Yield a row for each point of a sweep, and each cell of a probe (the fastest last)."""
    for name, result in opened.results_of(table).items():
        number = int(name.rpartition("-")[2]) if "-" in name else 0
        if hasattr(result, "cells"):
            for cell in sorted(result.cells, key=lambda cell: -cell.mb_per_second)[::-1]:
                yield {"drive": opened.drives[number - 1], **_of_cell(opened, number - 1, cell)}
        else:
            for point in result.points:
                if point.figures is not None:
                    means = {metric: value.mean for metric, value in point.figures.metrics.items()}
                    varied = {key: int(value) for key, value in point.settings.items() if value.isdecimal()}
                    yield {"drive": opened.drive_of(point.settings), "ranks": point.figures.ranks, **means, **varied}


def _of_cell(opened: OpenedDocument, position: int, cell: Any) -> dict[str, Any]:
    question, capacity = opened.answer.question, opened.answer.capacity_tb[position]
    watts = question.watts[position] if question.watts else None
    return {
        "mb_per_second": cell.mb_per_second,
        "iops": cell.iops,
        "mean_latency_ms": cell.latency_ms.mean if cell.latency_ms else None,
        "price_per_tb": question.price[position] / capacity if question.price and capacity else None,
        "size": f"{cell.size_bytes >> 10:>4} KiB",
        "workers": cell.in_flight,
        "gb_per_second": cell.mb_per_second / 1000,
        "gb_per_second_per_watt": cell.mb_per_second / 1000 / watts if watts else None,
    }


@dataclass(frozen=True)
class Panel:
    """A quantity of a document, for each drive."""

    title: str
    """Name and unit."""
    across: str
    """What the document varies, such as accelerators."""
    values: dict[tuple[str, Any], float]
    """(drive, value of what is varied) -> quantity."""
    shape: str


def panels_of(opened: OpenedDocument, table: DeclaredTable) -> list[Panel]:
    """Return the quantities of a table; where drives are what is varied, they are places of one series."""
    rows, panels = list(rows_of(opened, table)), []
    ((across, varied),) = table.across.items()
    for part in sorted({row[table.by] for row in rows}) if table.by else [""]:
        own = [row for row in rows if not table.by or row[table.by] == part]
        for title, name in table.values.items():
            known = [row for row in own if row.get(name) is not None]
            values = {("" if varied == "drive" else row["drive"], row[varied]): row[name] for row in known}
            panels.append(Panel(f"{title}, {part.strip()}" if part else title, across, values, table.shape))
    return panels


def over_time(opened: OpenedDocument, table: DeclaredTable) -> Iterator[Panel]:
    """Yield throughput and queue depth over time, and the share of the readings at each depth, a line for each run."""
    runs = opened.runs_of(table)
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
    width = max((float(one.seconds.max(initial=0)) for one in sources), default=0.0) / MOMENTS
    values: dict[float, float] = defaultdict(float)
    for one in sources if width else ():
        parts = (one.seconds[one.seconds >= 0] / width).astype(int)
        counts, sums = np.bincount(parts), np.bincount(parts, one.values[one.seconds >= 0])
        for part in np.flatnonzero(counts).tolist():
            values[round((part + 1) * width, 3)] += float(sums[part] / counts[part])
    return values
