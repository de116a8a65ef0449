"""Results of the steps of a document as rows: a drive and named values, whatever command measured them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dlemu.contrib.reproduce.document import DeclaredTable, Document, document_named
from dlemu.contrib.reproduce.run import Reproduced, read_reproduced
from dlemu.report.units import short_names
from dlemu.results.kinds import kind_of, kind_of_command

MIB_PER_MB = 1e6 / 2**20


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
        """Return a sentence for each step whose results are gone."""
        return [
            f"{os.path.join(self.folder, step.folder)} holds no result of `dlemu {step.command}`: what it showed is "
            "missing."
            for step in self.answer.steps
            if step.command != "datagen" and step.name not in self.results
        ]

    @property
    def drives(self) -> list[str]:
        """Return short names of the drives: the parts in which their paths differ."""
        return list(short_names(self.answer.question.drives).values())

    def results_of(self, table: DeclaredTable) -> dict[str, Any]:
        """Return step -> result of those that a table is of."""
        return {name: result for name, result in self.results.items() if name.startswith(table.of)}

    def drive_of(self, settings: dict[str, str]) -> str:
        """Return the drive of a point of a sweep or packing; with one drive, its folder does not vary."""
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
    """Yield a row for each point of a sweep or packing, each cell of a probe (the fastest last), each training run."""
    for name, result in opened.results_of(table).items():
        number = int(name.rpartition("-")[2]) if "-" in name else 0
        if hasattr(result, "cells"):
            for cell in sorted(result.cells, key=lambda cell: -cell.mb_per_second)[::-1]:
                yield {"drive": opened.drives[number - 1], **_of_cell(opened, number - 1, cell)}
        elif hasattr(result, "points"):
            for point in result.points:
                if point.figures is not None:
                    metrics = getattr(point.figures, "metrics", {})
                    means = {metric: value.mean for metric, value in metrics.items()}
                    varied = {key: int(value) for key, value in point.settings.items() if value.isdecimal()}
                    yield {"drive": opened.drive_of(point.settings), **vars(point.figures), **means, **varied}
        else:
            yield {"drive": opened.drives[0], "accelerators": number, **_of_run(result)}


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


def _of_run(run: Any) -> dict[str, Any]:
    def largest(metric: str) -> float | None:
        values = [float(one.values.max()) for one in run.device_series("block", metric) if len(one.values)]
        return max(values, default=None)

    mean, rate = run.summary.metrics.device_mb_per_second, largest("read_mb_per_second")
    return {
        "au_percent": run.summary.au.mean if run.summary.au else None,
        "mean_mib_per_second": mean.mean * MIB_PER_MB if mean else None,
        "largest_mib_per_second": rate * MIB_PER_MB if rate is not None else None,
        "largest_mean_depth": largest("mean_queue_depth"),
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


def panels_of(opened: OpenedDocument, table: DeclaredTable) -> list[Panel]:
    """Return the quantities of a table."""
    rows, panels = list(rows_of(opened, table)), []
    ((across, varied),) = table.across.items()
    for part in sorted({row[table.by] for row in rows}) if table.by else [""]:
        own = [row for row in rows if not table.by or row[table.by] == part]
        for title, name in table.values.items():
            values = {(row["drive"], row[varied]): row[name] for row in own if row.get(name) is not None}
            panels.append(Panel(f"{title}, {part.strip()}" if part else title, across, values))
    return panels
